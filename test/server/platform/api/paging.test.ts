/** Cursors and limits of every list. */
import type { ApiRoute } from '../../../../server/platform/api/route';
import { apiRoutes } from '../../../../server/platform/api/routes';
import { alice, overServices, service } from './suite';

const LISTS = apiRoutes().filter(
  ({ query }) => query?.properties?.after !== undefined && query.properties.limit !== undefined,
);
const addressOf = ({ path }: ApiRoute): string => path.replace(/\{\w+\}/g, '1');

test('covers every list', () => expect(LISTS.length).toBeGreaterThan(15));

overServices(() => {
  test.each(LISTS.map((route) => [route.path, route] as const))(
    '%s begins nowhere else than at the next of one of its pages',
    async (_path, route) => {
      for (const [name, values] of [
        ['after', ['garbage', '%27', '-1', 'dep_1']],
        ['limit', ['0', '100000', 'x', '']],
      ] as const) {
        for (const value of values) {
          const { status, body } = await alice.get(`${addressOf(route)}?${name}=${value}`);
          expect([value, status, body.errors]).toEqual([
            value,
            400,
            [{ pointer: `?${name}`, message: expect.stringMatching(/^expected /) }],
          ]);
          expect(body.detail).toMatch(new RegExp(`^\\?${name}: expected `));
        }
      }
    },
  );

  test('refuses a cursor of another list or another order', async () => {
    for (const name of ['a', 'b']) await alice.post('/api/v1/keys', { name });
    const { next } = (await alice.get('/api/v1/keys?limit=1')).body;
    const at = async (target: string) => (await alice.get(target)).status;
    expect([
      await at(`/api/v1/keys?after=${next}`),
      await at(`/api/v1/keys?after=${next}&sort=name`),
      await at(`/api/v1/keys?after=${next}&order=desc`),
      await at(`/api/v1/deployments?after=${next}`),
    ]).toEqual([200, 400, 400, 400]);
    const root = await service.admin();
    const { next: owner } = (await root.get('/api/v1/quotas?limit=1')).body;
    expect((await root.get(`/api/v1/quotas?after=${owner}`)).status).toBe(200);
    for (const path of ['deployments', 'containers', 'orgs', 'data-sources'])
      expect([path, (await root.get(`/api/v1/${path}?after=${owner}`)).status]).toEqual([path, 400]);
  });
});
