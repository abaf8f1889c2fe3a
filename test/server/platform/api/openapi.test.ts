import { openApiRoute, managementDocument } from '../../../../server/platform/api/routes/openapi';
import { apiRoutes } from '../../../../server/platform/api/routes';
import { Service } from './support';

const routes = apiRoutes();
const document = JSON.parse(JSON.stringify(managementDocument(routes))) as any;

test('describes exactly the existing routes', () => {
  const described = Object.entries<any>(document.paths).flatMap(([path, item]) =>
    Object.keys(item).map((method) => `${method.toUpperCase()} ${path}`),
  );
  expect(described.sort()).toEqual(routes.map(({ method, path }) => `${method} ${path}`).sort());
  const ids = Object.values<any>(document.paths).flatMap((item) =>
    Object.values<any>(item).map(({ operationId }) => operationId),
  );
  expect(new Set(ids).size).toBe(ids.length);
});

test('resolves all references and names all path parameters', () => {
  for (const [, name] of JSON.stringify(document).matchAll(/"\$ref":"#\/components\/schemas\/(\w+)"/g))
    expect(document.components.schemas).toHaveProperty(name);
  for (const [path, item] of Object.entries<any>(document.paths)) {
    const wanted = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
    for (const operation of Object.values<any>(item))
      expect(
        (operation.parameters ?? [])
          .filter((parameter: any) => parameter.in === 'path')
          .map((parameter: any) => parameter.name),
      ).toEqual(wanted);
  }
});

test.each(routes.map((route) => [`${route.method} ${route.path}`, route] as const))(
  '%s says what it is',
  (_name, route) => {
    const operation = document.paths[route.path][route.method.toLowerCase()];
    expect(route.summary).not.toBe('');
    expect(route.path).toMatch(/^\/api\/v1\//);
    // GET changes nothing, and bodies refuse unknown fields.
    if (route.method === 'GET') expect(route.body).toBeUndefined();
    if (route.body !== undefined) expect(route.body).toMatchObject({ type: 'object', additionalProperties: false });
    if (route.query !== undefined) expect(route.query).toMatchObject({ additionalProperties: false });
    const statuses = Object.keys(operation.responses).map(Number);
    expect(statuses.some((status) => status < 300)).toBe(true);
    if (route.auth !== 'none') expect(statuses).toContain(401);
    if (route.path.includes('{')) expect(statuses).toContain(404);
  },
);

test('is served without authentication', async () => {
  const service = await Service.open({}, undefined, [...routes.slice(0, 1), openApiRoute(() => routes)]);
  expect(await service.send('GET', '/api/v1/openapi.json')).toMatchObject({
    status: 200,
    body: { openapi: '3.1.0', info: { title: 'Capstan management API' } },
  });
  await service.close();
});
