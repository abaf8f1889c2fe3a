/**
 * Two organizations, four roles, every route: requests for an object of the other organization respond as if it did not
 * exist. The cases come from the list of routes, so a new route without an entry fails.
 */
import type { MemberRole } from '../../../../server/access/store/schema';
import type { ApiRoute } from '../../../../server/platform/api/route';
import { apiRoutes } from '../../../../server/platform/api/routes';
import type { Schema } from '../../../../server/platform/api/schema';
import { overBackends } from '../../access/support';
import { migrated } from '../support';
import { expectNoSecrets, type Person, type Reply, Service } from './support';

const ROLES = ['owner', 'admin', 'developer', 'viewer'] as const satisfies readonly MemberRole[];

/** Objects of an organization and one of its members. */
interface Tenant {
  org: string;
  members: Record<MemberRole, Person>;
  invitation: string;
  key: string;
  deployment: string;
  container: string;
  source: string;
  /** Objects of the owner. */
  session: string;
  token: string;
  webhook: string;
  budget: string;
}

/** The objects that a path names, by its prefix. */
const OBJECTS: readonly [prefix: string, params: (tenant: Tenant) => Record<string, string>][] = [
  ['/api/v1/orgs/{org}', ({ org, members, invitation }) => ({ org, user: members.viewer.userId, id: invitation })],
  ['/api/v1/keys/{id}', ({ key }) => ({ id: key })],
  ['/api/v1/sessions/{id}', ({ session }) => ({ id: session })],
  ['/api/v1/tokens/{id}', ({ token }) => ({ id: token })],
  ['/api/v1/deployments/{id}', ({ deployment }) => ({ id: deployment, n: '1' })],
  ['/api/v1/containers/{id}', ({ container }) => ({ id: container })],
  ['/api/v1/data-sources/{id}', ({ source }) => ({ id: source })],
  ['/api/v1/budgets/{id}', ({ budget }) => ({ id: budget })],
  ['/api/v1/webhooks/{id}', ({ webhook }) => ({ id: webhook, delivery: 'whd_1' })],
];

/** Routes whose path names no object, with a query or body that names one if possible. */
const ELSEWHERE: Readonly<Record<string, readonly ((tenant: Tenant) => { query?: string; body?: object })[]>> = {
  'POST /api/v1/auth/login': [],
  'POST /api/v1/auth/logout': [],
  'GET /api/v1/auth/providers': [],
  'POST /api/v1/auth/providers/{id}/begin': [],
  'POST /api/v1/auth/providers/callback': [],
  'POST /api/v1/auth/password-reset': [],
  'POST /api/v1/bootstrap': [],
  'GET /api/v1/me': [],
  'PATCH /api/v1/me': [],
  'DELETE /api/v1/me': [],
  'POST /api/v1/me/email': [],
  'POST /api/v1/me/password': [],
  'POST /api/v1/me/totp': [],
  'PUT /api/v1/me/totp': [],
  'DELETE /api/v1/me/totp': [],
  'POST /api/v1/me/recovery-codes': [],
  'GET /api/v1/sessions': [],
  'DELETE /api/v1/sessions': [],
  'GET /api/v1/tokens': [],
  'POST /api/v1/tokens': [],
  'GET /api/v1/orgs': [],
  'POST /api/v1/orgs': [],
  'POST /api/v1/invitations/inspect': [],
  'POST /api/v1/invitations/accept': [],
  'GET /api/v1/keys': [
    ({ org }) => ({ query: `scope=org&org=${org}` }),
    ({ deployment }) => ({ query: `scope=deployment&deployment=${deployment}` }),
  ],
  'POST /api/v1/keys': [
    ({ org }) => ({ query: `scope=org&org=${org}`, body: { name: 'k' } }),
    ({ org }) => ({ body: { name: 'k', owner: { type: 'org', id: org } } }),
    ({ deployment }) => ({ query: `scope=deployment&deployment=${deployment}`, body: { name: 'k' } }),
    ({ deployment }) => ({ body: { name: 'k', deployments: [deployment] } }),
    ({ members }) => ({ body: { name: 'k', owner: { type: 'user', id: members.owner.userId } } }),
  ],
  'GET /api/v1/propagation/{rev}': [],
  'GET /api/v1/audit': [({ org }) => ({ query: `org=${org}` })],
  'GET /api/v1/openapi.json': [],
  'GET /api/v1/images': [],
  'GET /api/v1/compute': [],
  'GET /api/v1/data-sources': [],
  'POST /api/v1/data-pulls': [
    ({ org }) => ({ body: { name: 'p', model: 'acme/tiny', owner: { type: 'org', id: org } } }),
    ({ members }) => ({ body: { name: 'p', model: 'acme/tiny', owner: { type: 'user', id: members.owner.userId } } }),
  ],
  'POST /api/v1/data-pulls/preview': [({ source }) => ({ body: { model: 'acme/tiny', source_id: source } })],
  'GET /api/v1/containers': [
    ({ org }) => ({ query: `owner=org:${org}` }),
    ({ members }) => ({ query: `owner=user:${members.owner.userId}` }),
  ],
  'POST /api/v1/containers': [
    ({ org }) => ({ body: { name: 'c', owner: { type: 'org', id: org } } }),
    ({ members }) => ({ body: { name: 'c', owner: { type: 'user', id: members.owner.userId } } }),
  ],
  'GET /api/v1/deployments': [
    ({ org }) => ({ query: `owner=org:${org}` }),
    ({ members }) => ({ query: `owner=user:${members.owner.userId}` }),
  ],
  'POST /api/v1/deployments': [
    ({ org }) => ({ body: { name: 'd', owner: { type: 'org', id: org } } }),
    ({ members }) => ({ body: { name: 'd', owner: { type: 'user', id: members.owner.userId } } }),
  ],
  'GET /api/v1/events/stream': [],
  'GET /api/v1/prices': [],
  'GET /api/v1/budgets': [],
  'POST /api/v1/budgets': [
    ({ key }) => ({ body: { subject: key, amount: '1', period: 'day' } }),
    ({ org }) => ({ body: { subject: org, amount: '1', period: 'day' } }),
    ({ members }) => ({ body: { subject: members.owner.userId, amount: '1', period: 'day' } }),
  ],
  'GET /api/v1/spend': [
    ({ org }) => ({ query: `owner=${org}` }),
    ({ members }) => ({ query: `owner=${members.owner.userId}` }),
  ],
  'GET /api/v1/spend/csv': [
    ({ org }) => ({ query: `owner=${org}` }),
    ({ members }) => ({ query: `owner=${members.owner.userId}` }),
  ],
  'GET /api/v1/webhooks': [],
  'POST /api/v1/webhooks': [
    ({ org }) => ({ body: { url: 'https://example.com/', events: ['*'], owner: { type: 'org', id: org } } }),
    ({ members }) => ({
      body: { url: 'https://example.com/', events: ['*'], owner: { type: 'user', id: members.owner.userId } },
    }),
  ],
};

/** Refused to others before any object is looked up. */
const FOR_ADMINISTRATORS = new Set([
  'POST /api/v1/keys/inspect',
  'POST /api/v1/images',
  'DELETE /api/v1/images/{id}',
  'POST /api/v1/data-sources',
  'DELETE /api/v1/data-sources/{id}',
  'PATCH /api/v1/data-sources/{id}',
  'POST /api/v1/data-sources/{id}/measurement',
  'DELETE /api/v1/data-sources/{id}/measurement',
  'GET /api/v1/quotas',
  'GET /api/v1/quotas/{id}',
  'PATCH /api/v1/quotas/{id}',
  'PUT /api/v1/prices',
  'PATCH /api/v1/prices',
  'DELETE /api/v1/prices/{id}',
  'GET /api/v1/identity-providers',
  'POST /api/v1/identity-providers',
  'GET /api/v1/identity-providers/{id}',
  'PATCH /api/v1/identity-providers/{id}',
  'DELETE /api/v1/identity-providers/{id}',
  'DELETE /api/v1/users/{id}',
  'PUT /api/v1/users/{id}/administrator',
  'POST /api/v1/users/{id}/password-reset',
]);

const routes = apiRoutes();
const nameOf = ({ method, path }: ApiRoute): string => `${method} ${path}`;
const objectOf = (route: ApiRoute) => (FOR_ADMINISTRATORS.has(nameOf(route)) ? undefined : objectAt(route.path));
const objectAt = (path: string) => OBJECTS.find(([prefix]) => path === prefix || path.startsWith(`${prefix}/`))?.[1];

test('every route has an entry, and every entry a route', () => {
  const names = routes.map(nameOf);
  expect(
    routes
      .filter(
        (route) =>
          objectOf(route) === undefined &&
          !Object.hasOwn(ELSEWHERE, nameOf(route)) &&
          !FOR_ADMINISTRATORS.has(nameOf(route)),
      )
      .map(nameOf),
  ).toEqual([]);
  expect([...Object.keys(ELSEWHERE), ...FOR_ADMINISTRATORS].filter((name) => !names.includes(name))).toEqual([]);
});

overBackends((make) => {
  describe('two organizations', () => {
    let service: Service;
    let root: Person;
    let ours: Tenant;
    let theirs: Tenant;

    beforeAll(async () => {
      service = await Service.open({}, await make(migrated));
      service.resolve = () => Promise.resolve([{ address: '93.184.215.14', family: 4 }]);
      root = await service.admin();
      ours = await makeTenant('ours');
      theirs = await makeTenant('theirs');
    });
    afterAll(async () => {
      expectNoSecrets(service.replies);
      await service.close();
    });

    async function makeTenant(slug: string): Promise<Tenant> {
      const owner = await service.person(`owner@${slug}.example`);
      const {
        body: { id: org },
      } = await owner.post('/api/v1/orgs', { name: slug, slug });
      const members = { owner } as Record<MemberRole, Person>;
      for (const role of ROLES.slice(1)) {
        members[role] = await service.person(`${role}@${slug}.example`);
        expect((await members[role].join(org, owner, role)).status).toBe(204);
      }
      const made = async (path: string, body: object): Promise<string> => {
        const reply = await owner.post(path, body);
        expect([path, reply.status < 300, reply.body.detail]).toEqual([path, true, undefined]);
        return reply.body.id;
      };
      const invitation = await made(`/api/v1/orgs/${org}/invitations`, {
        email: `someone@${slug}.example`,
        role: 'viewer',
      });
      const key = await made(`/api/v1/keys?scope=org&org=${org}`, { name: 'key' });
      const token = await made('/api/v1/tokens', { name: 'token', rights: 'write' });
      const session = (await owner.get('/api/v1/sessions')).body.data[0].id;
      const ofOrg = { owner: { type: 'org', id: org } };
      const deployment = await made('/api/v1/deployments', { name: 'deployment', ...ofOrg });
      const container = await made('/api/v1/containers', { name: 'container', ...ofOrg });
      const {
        body: { id: source },
      } = await root.post('/api/v1/data-sources', {
        name: 'source',
        type: 'model',
        path: service.dataRoot,
        visibility: 'org',
        ...ofOrg,
      });
      const webhook = await made('/api/v1/webhooks', {
        url: `https://hooks.${slug}.example/`,
        events: ['*'],
        ...ofOrg,
      });
      const budget = await made('/api/v1/budgets', { subject: key, amount: '10', period: 'month' });
      return { org, members, invitation, key, deployment, container, source, session, token, webhook, budget };
    }

    function send(
      person: Person,
      route: ApiRoute,
      params: Record<string, string>,
      { query, body }: { query?: string; body?: object } = {},
    ): Promise<Reply> {
      const path = route.path.replace(/\{(\w+)\}/g, (_match, name: string) => params[name]);
      const asked =
        query ??
        Object.entries(route.query?.properties ?? {})
          .filter(([name]) => route.query?.required?.includes(name))
          .map(([name, schema]) => `${name}=${encodeURIComponent(String(sample(schema)))}`)
          .join('&');
      return person.send(
        route.method,
        asked === '' ? path : `${path}?${asked}`,
        route.body === undefined ? undefined : (body ?? sample(route.body)),
        route.needsIfMatch === true ? { 'if-match': '"1"' } : {},
      );
    }

    describe.each(ROLES)('the %s of one', (role) => {
      test.each(
        routes.filter((route) => objectOf(route) !== undefined).map((route) => [nameOf(route), route] as const),
      )("does not find the other's: %s", async (_name, route) => {
        const reply = await send(ours.members[role], route, objectOf(route)!(theirs));
        expect([reply.status, reply.body.code]).toEqual([404, 'not_found']);
      });

      test.each(
        routes.flatMap((route) =>
          (ELSEWHERE[nameOf(route)] ?? []).map(
            (foreign, i) => [`${nameOf(route)} (${i + 1})`, route, foreign] as const,
          ),
        ),
      )("cannot name the other's: %s", async (_name, route, foreign) => {
        const reply = await send(ours.members[role], route, {}, foreign(theirs));
        expect([reply.status, reply.body.code]).toEqual([404, 'not_found']);
      });

      test.each(
        routes
          .filter(
            (route) =>
              route.method === 'GET' &&
              route.responses[200] !== undefined &&
              route.responses[200] !== 'text/event-stream' &&
              !route.path.includes('{') &&
              route.auth !== 'none',
          )
          .map((route) => [nameOf(route), route] as const),
      )('sees nothing of the other in %s', async (_name, route) => {
        const { text } = await send(ours.members[role], route, {});
        for (const id of [
          theirs.org,
          theirs.key,
          theirs.deployment,
          theirs.container,
          theirs.source,
          theirs.token,
          theirs.session,
          theirs.webhook,
          theirs.budget,
          'theirs.example',
        ])
          expect(text).not.toContain(id);
      });
    });

    test.each([...FOR_ADMINISTRATORS])('is only for administrators, whatever it names: %s', async (name) => {
      const route = routes.find((candidate) => nameOf(candidate) === name)!;
      for (const role of ROLES) {
        for (const id of [theirs.source, ours.source, 'none'])
          expect(await send(ours.members[role], route, { id })).toMatchObject({
            status: 403,
            body: { code: 'forbidden' },
          });
      }
    });

    test('data of the other organization cannot be bound', async () => {
      const bind = (source: string) =>
        ours.members.owner.post('/api/v1/deployments', {
          name: 'd',
          bindings: [{ mount: 'input0', source_id: source }],
        });
      const [foreign, unknown] = [await bind(theirs.source), await bind(`src_${'0'.repeat(26)}`)];
      expect([foreign.status, foreign.body.detail.replace(theirs.source, 'ID')]).toEqual([
        422,
        unknown.body.detail.replace(/src_0+/, 'ID'),
      ]);
      expect((await bind(ours.source)).status).toBe(202);
    });

    test('an anonymous caller gets only 401', async () => {
      let numCallers = 0;
      for (const route of routes.filter(({ auth }) => auth !== 'none')) {
        const path = route.path.replace(/\{(\w+)\}/g, (_match, name: string) => objectOf(route)?.(theirs)[name] ?? '1');
        for (const headers of [
          {} as Record<string, string>,
          { authorization: 'Bearer sk-cap1_0123456789AB_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1GlQkh' },
        ]) {
          const reply = await service.send(route.method, path, {
            headers: { 'content-type': 'application/json', ...headers },
            body: route.body === undefined ? undefined : '{}',
            remoteAddress: `2001:db8:${(++numCallers).toString(16)}::1`,
          });
          expect([nameOf(route), reply.status, reply.body.code]).toEqual([nameOf(route), 401, 'unauthenticated']);
        }
      }
    });

    // Proves the matrix: the owner of the other organization can access the same ids.
    test('the owner of the other organization can access each object', async () => {
      const mine = routes.filter(
        (route) => objectOf(route) !== undefined && route.responses[200] !== 'text/event-stream',
      );
      for (const route of mine.filter(({ method }) => method === 'GET')) {
        const reply = await send(theirs.members.owner, route, objectOf(route)!(theirs));
        expect([nameOf(route), reply.status === 404 ? reply.text : '']).toEqual([nameOf(route), '']);
      }
    });
  });
});

/** Returns a minimal valid value of a schema. */
function sample(schema: Schema): unknown {
  if (schema.default !== undefined) return schema.default;
  if ('const' in schema) return schema.const;
  if (schema.enum !== undefined) return schema.enum[0];
  if (schema.anyOf !== undefined) return sample(schema.anyOf[0]);
  switch (schema.type) {
    case 'object':
      return Object.fromEntries(
        (schema.required ?? []).map((name) => [
          name,
          name === 'email' ? 'someone@example.com' : sample(schema.properties![name]),
        ]),
      );
    case 'array':
      return (
        schema.prefixItems?.map(sample) ?? Array.from({ length: schema.minItems ?? 0 }, () => sample(schema.items!))
      );
    case 'integer':
    case 'number':
      return schema.minimum ?? 1;
    case 'boolean':
      return false;
    case 'null':
      return null;
    default:
      return textLike(schema);
  }
}

const TEXTS: Readonly<Record<string, string>> = {
  '^[0-9]{6}$': '123456',
  '^/[!-~]*$': '/',
  '^dep_[0-9a-z]{26}$': `dep_${'0'.repeat(26)}`,
  '^\\d{1,10}(\\.\\d{1,6})?$': '1',
  '^\\d{1,10}(\\.\\d{1,9})?$': '1',
  '^(key|usr|org)_[0-9a-z]{26}$': `key_${'0'.repeat(26)}`,
  '^(\\*|[a-z]+\\.(\\*|[a-z_]+))$': '*',
};

function textLike({ pattern, format, minLength = 1 }: Schema): string {
  if (format === 'date-time') return '2030-01-31T00:00:00Z';
  return pattern === undefined ? 'a'.repeat(minLength) : (TEXTS[pattern] ?? 'a');
}
