/** NUL is refused everywhere, because PostgreSQL cannot store it. */
import type { ApiRoute } from '../../../../server/platform/api/route';
import { apiRoutes } from '../../../../server/platform/api/routes';
import { alice, overServices, service } from './suite';

const ROUTES = apiRoutes();
const withIds = ({ path }: ApiRoute, id: string): string => path.replace(/\{\w+\}/g, id);
const TEXTS = ROUTES.filter(({ method }) => method === 'GET').flatMap((route) =>
  Object.entries(route.query?.properties ?? {})
    .filter(([, { type }]) => type === 'string')
    .map(([name]) => ({ route, name })),
);

overServices(() => {
  test('is refused in a path', async () => {
    const routes = ROUTES.filter(({ method, path }) => method === 'GET' && path.includes('{'));
    expect(routes.length).toBeGreaterThan(15);
    for (const route of routes)
      expect([route.path, (await alice.get(withIds(route, 'dep_%00'))).status]).toEqual([route.path, 404]);
  });

  test('is refused in a query parameter', async () => {
    expect(TEXTS.length).toBeGreaterThan(30);
    for (const { route, name } of TEXTS) {
      const { status, body } = await alice.get(`${withIds(route, '1')}?${name}=%00`);
      expect([route.path, name, status, body.errors]).toEqual([
        route.path,
        name,
        400,
        [{ pointer: `?${name}`, message: expect.stringMatching(/^expected /) }],
      ]);
    }
  });

  test.each<[string, object]>([
    ['deployments', { name: 'x', note: 'a\0b' }],
    ['deployments', { name: 'x', start_command: 'a\0b' }],
    ['deployments', { name: 'x', image_id: 'a\0b' }],
    ['deployments', { name: 'x', owner: { type: 'org', id: 'a\0b' } }],
    ['deployments', { name: 'x', bindings: [{ mount: 'input0', source_id: 'a\0b' }] }],
    ['containers', { name: 'x', start_command: 'a\0b' }],
    ['auth/login', { email: 'a\0b', password: 'x' }],
  ])('is refused in a body: %s %j', async (path, body) => {
    const reply = await alice.post(`/api/v1/${path}`, body);
    expect(reply).toMatchObject({
      status: 400,
      body: { code: 'invalid_request', detail: expect.stringMatching(/: expected text without NUL$/) },
    });
    expect(service.logged.filter((line) => line.includes('err'))).toEqual([]);
  });
});
