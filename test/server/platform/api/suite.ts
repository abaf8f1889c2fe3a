/** Suites of the management API over each database. Every test has a new service with Alice signed in. */
import { overBackends } from '../../access/support';
import { migrated } from '../support';
import { expectNoSecrets, type Person, type Reply, Service } from './support';

export let service: Service;
export let alice: Person;

export function overServices(suite: () => void): void {
  overBackends((make) => {
    beforeEach(async () => {
      service = await Service.open({}, await make(migrated));
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
