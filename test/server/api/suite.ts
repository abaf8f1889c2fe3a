/** A suite of the management interface over each database: a service of its own for every test, with Alice signed in. */
import { overBackends } from '../access/support';
import { expectNoSecrets, type Person, type Reply, Service } from './support';

export let service: Service;
export let alice: Person;

export function overServices(suite: () => void): void {
  overBackends((make) => {
    beforeEach(async () => {
      service = await Service.open({}, await make());
      alice = await service.person('alice@example.com');
    });
    afterEach(async () => {
      expectNoSecrets(service.replies);
      await service.close();
    });
    suite();
  });
}

export const JSON_TYPE = { 'content-type': 'application/json' };

export const statuses = (replies: readonly Reply[]): number[] => replies.map(({ status }) => status);
