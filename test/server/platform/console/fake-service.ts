/** The management API in memory. It stores the changes that pages make, and streams the events that they follow. */
import type { HttpReply, HttpRequest } from '../../../../server/http/transport';
import type { DataPull, DataSource, LogLine } from '../../../../server/platform/api/objects';
import {
  at,
  AUDIT,
  CANARY,
  CAPACITY,
  CONTAINERS,
  DELIVERIES,
  DEPLOYMENTS,
  EVENTS,
  id,
  IMAGES,
  INVITATIONS,
  KEYS,
  LINES,
  ME,
  MEMBERS,
  metrics,
  ORGS,
  PREVIEW,
  PROVIDERS,
  PULLED,
  QUOTAS,
  SESSIONS,
  SOURCES,
  TOKENS,
  UPSTREAM_VERSIONS,
  VERSIONS,
  WEBHOOKS,
} from './fixtures';
import { BUDGETS, PRICES, SPEND } from './costs-fixtures';

interface Call {
  params: string[];
  query: URLSearchParams;
  body: any;
  ifMatch: string | undefined;
  reply: HttpReply;
}

type Handler = (call: Call) => unknown;
export const SECRET = `sk-cap1_0123456789AB_${'a'.repeat(32)}1GlQkh`;
export const SESSION_SECRET = 'fake-session-secret';
export const RECOVERY_CODES = Array.from({ length: 10 }, (_, i) => `${i}a2b3-c4d5e`);
const PROPAGATION = { rev: 77, applied: 1, total: 1, max_lag_ms: 0, ceiling_s: 300 };

export class FakeService {
  isSignedIn = true;
  me = structuredClone(ME);
  deployments = structuredClone(DEPLOYMENTS);
  keys = structuredClone(KEYS);
  quotas = structuredClone(QUOTAS);
  providers = structuredClone(PROVIDERS);
  canary = structuredClone(CANARY);
  /** The state of the sign-in that has begun. */
  signInState = 'the-state';
  sources = structuredClone([...SOURCES, ...PULLED]);
  /** Returns empty lists. */
  isEmpty = false;
  /** Logs have a second page with older lines. */
  hasOlderLines = false;
  /** Returned by every call except GET /me. */
  failure: { status: number; code: string; detail: string } | undefined;
  readonly calls: { method: string; path: string; body: any; secret: string | undefined }[] = [];

  async handle(request: HttpRequest, reply: HttpReply): Promise<void> {
    const body = request.method === 'GET' ? undefined : parse((await request.readBody()).toString());
    const path = request.path.slice('/api/v1'.length);
    const secret = request.headers.find(([name]) => name === 'x-session-secret')?.[1];
    this.calls.push({ method: request.method, path, body, secret });
    if (this.failure !== undefined && path !== '/me') return this.#problem(reply, this.failure);
    if (!this.isSignedIn && !/^\/(auth|bootstrap|invitations)\b/.test(path))
      return this.#problem(reply, {
        status: 401,
        code: 'unauthenticated',
        detail: 'sign in, or send a management token',
      });
    for (const [route, handler] of Object.entries(this.#routes)) {
      const [method, pattern] = route.split(' ');
      const match = method === request.method ? new RegExp(`^${pattern.replaceAll('*', '([^/]+)')}$`).exec(path) : null;
      if (match === null) continue;
      const ifMatch = request.headers.find(([name]) => name === 'if-match')?.[1];
      const answer = handler({
        params: match.slice(1).map(decodeURIComponent),
        query: new URLSearchParams(request.query),
        body,
        ifMatch,
        reply,
      });
      if (answer === STREAMED) return;
      if (answer === undefined)
        return reply.send(204, path === '/auth/login' ? { 'X-Session-Secret': SESSION_SECRET } : {}, '');
      const [status, value] = Array.isArray(answer) ? (answer as [number, unknown]) : [200, answer];
      return reply.send(
        status,
        { 'Content-Type': status >= 400 ? 'application/problem+json' : 'application/json' },
        JSON.stringify(value),
      );
    }
    this.#problem(reply, { status: 404, code: 'not_found', detail: `there is nothing at ${request.method} ${path}` });
  }

  #problem(reply: HttpReply, { status, code, detail }: { status: number; code: string; detail: string }): void {
    reply.send(
      status,
      { 'Content-Type': 'application/problem+json' },
      JSON.stringify({ type: 'about:blank', title: code, status, detail, code, errors: [], request_id: 'f00d' }),
    );
  }

  #page(data: readonly unknown[]): unknown {
    return { data: this.isEmpty ? [] : data, next: null };
  }

  #find<T extends { id: string }>(list: readonly T[], wanted: string): T | [number, unknown] {
    return (
      list.find((item) => item.id === wanted) ?? [404, { status: 404, code: 'not_found', detail: 'object not found' }]
    );
  }

  #setPull(sourceId: string, part: Partial<DataPull>): unknown {
    const changed = (source: DataSource) => ({ ...source, pull: { ...source.pull!, ...part } });
    this.sources = this.sources.map((source) => (source.id === sourceId ? changed(source) : source));
    return this.#find(this.sources, sourceId);
  }

  readonly #routes: Record<string, Handler> = {
    'POST /auth/login': ({ body }) => {
      if (body.password !== 'correct horse')
        return [401, { status: 401, code: 'bad_credentials', detail: 'wrong email address or password', errors: [] }];
      this.isSignedIn = true;
      return undefined;
    },
    'GET /auth/providers': () => ({
      data: this.providers
        .filter(({ enabled }) => enabled)
        .map(({ id: providerId, name }) => ({ id: providerId, name })),
    }),
    'POST /auth/providers/*/begin': ({ body }) => ({
      url: `/sign-in/callback?code=the-code&state=${this.signInState}&to=${encodeURIComponent(body.return_to)}`,
      state: 'the-state',
    }),
    'POST /auth/providers/callback': ({ body }) => {
      if (body.error !== undefined)
        return [403, { status: 403, code: 'sign_in_refused', detail: body.error_description, errors: [] }];
      this.isSignedIn = true;
      return { return_to: '/containers' };
    },
    'GET /identity-providers': () => this.#page(this.providers),
    'POST /identity-providers': ({ body }) => {
      const { client_secret: secret, ...named } = body;
      const made = { ...PROVIDERS[1], ...named, id: id('idp', 9), has_client_secret: secret !== undefined };
      this.providers = [...this.providers, made];
      return [201, made];
    },
    'PATCH /identity-providers/*': ({ params, body }) =>
      Object.assign(
        this.providers.find((provider) => provider.id === params[0])!,
        body,
      ),
    'DELETE /identity-providers/*': ({ params }) => {
      this.providers = this.providers.filter((provider) => provider.id !== params[0]);
    },
    'POST /auth/logout': () => {
      this.isSignedIn = false;
    },
    'POST /auth/password-reset': ({ body }) =>
      body.token === 'abc'
        ? undefined
        : [410, { status: 410, code: 'gone', detail: 'this link was used, replaced or has expired', errors: [] }],
    'POST /bootstrap': () => {
      this.isSignedIn = true;
    },
    'GET /me': () => this.me,
    'PATCH /me': ({ body }) => Object.assign(this.me, body, { rev: this.me.rev + 1 }),
    'POST /me/email': ({ body }) => {
      if (body.password !== 'correct horse')
        return [401, { status: 401, code: 'bad_credentials', detail: 'wrong email address or password', errors: [] }];
      return Object.assign(this.me, { email: body.email });
    },
    'DELETE /me': ({ body }) => {
      if (body.password !== 'correct horse')
        return [401, { status: 401, code: 'bad_credentials', detail: 'wrong email address or password', errors: [] }];
      this.isSignedIn = false;
      return undefined;
    },
    'GET /spend': () => SPEND,
    'GET /prices': () => PRICES,
    'GET /budgets': () => this.#page(BUDGETS),
    'GET /quotas': ({ query }) =>
      this.#page(this.quotas.filter(({ owner }) => owner.name.includes(query.get('q') ?? ''))),
    'GET /quotas/*': ({ params }) => this.quotas.find(({ owner }) => owner.id === params[0]),
    'PATCH /quotas/*': ({ params, body, ifMatch }) => {
      const quota = this.quotas.find(({ owner }) => owner.id === params[0])!;
      if (ifMatch !== `"${quota.rev}"`)
        return [412, { status: 412, code: 'stale', detail: 'changed by another user', errors: [] }];
      return Object.assign(quota, body, { rev: quota.rev + 1 });
    },
    'PUT /users/*/administrator': ({ params, body }) =>
      Object.assign(
        this.quotas.find(({ owner }) => owner.id === params[0])!,
        { is_admin: body.enabled },
      ),
    'POST /users/*/password-reset': ({ params }) => [
      201,
      {
        email: this.quotas.find(({ owner }) => owner.id === params[0])!.owner.name,
        expires_at: at(1_440),
        token: 'abc',
      },
    ],
    'DELETE /users/*': ({ params, query }) => {
      const quota = this.quotas.find(({ owner }) => owner.id === params[0])!;
      if (query.get('confirm') !== quota.owner.name)
        return [422, { status: 422, code: 'invalid_argument', detail: 'expected the exact address', errors: [] }];
      this.quotas = this.quotas.filter((other) => other !== quota);
      return undefined;
    },
    'POST /me/totp': () => [
      201,
      {
        secret: 'JBSWY3DPEHPK3PXP',
        url: 'otpauth://totp/Capstan:ada%40example.com?secret=JBSWY3DPEHPK3PXP&issuer=Capstan',
      },
    ],
    'PUT /me/totp': () => {
      Object.assign(this.me, { has_totp: true, recovery_codes_left: 10 });
      return { recovery_codes: RECOVERY_CODES };
    },
    'POST /me/recovery-codes': () => {
      Object.assign(this.me, { recovery_codes_left: 10 });
      return [201, { recovery_codes: RECOVERY_CODES }];
    },
    'DELETE /me/totp': () => {
      Object.assign(this.me, { has_totp: false, recovery_codes_left: 0 });
    },
    'GET /sessions': () => this.#page(SESSIONS),
    'GET /tokens': () => this.#page(TOKENS),
    'POST /tokens': ({ body }) => [201, { ...TOKENS[0], ...body, token: 'mt-0123456789' }],
    'GET /orgs': () => this.#page(ORGS),
    'GET /orgs/*': ({ params }) => this.#find(ORGS, params[0]),
    'GET /orgs/*/members': () => this.#page(MEMBERS),
    'GET /orgs/*/invitations': () => this.#page(INVITATIONS),
    'POST /invitations/inspect': () => ({
      organization: 'Acme Research',
      email: 'alan@example.com',
      role: 'developer',
      has_account: false,
    }),
    'GET /keys': ({ query }) =>
      this.#page(
        query.get('scope') === 'deployment'
          ? this.keys.filter(({ deployments }) => deployments.some((bound) => bound.id === query.get('deployment')))
          : this.keys,
      ),
    'POST /keys': ({ body }) => {
      const key = {
        ...KEYS[0],
        id: id('key', 90 + this.keys.length),
        name: body.name,
        type: body.type,
        deployments: [],
      };
      this.keys.push(key);
      return [201, { ...key, propagation: PROPAGATION, secret: SECRET }];
    },
    'DELETE /keys/*': ({ params }) => {
      this.keys = this.keys.filter((key) => key.id !== params[0]);
      return { ...KEYS[0], state: 'deleted', propagation: PROPAGATION };
    },
    'GET /keys/*/usage': () => ({
      data: Array.from({ length: 14 }, (_, i) => ({
        day: at(i * 1_440).slice(0, 10),
        requests: 40 + i * 7,
        tokens: 9_000 + i * 800,
      })),
    }),
    'GET /webhooks': () => this.#page(WEBHOOKS),
    'POST /webhooks': ({ body }) => [201, { ...WEBHOOKS[0], ...body, secret: 'whsec_AAAA' }],
    'GET /webhooks/*/deliveries': () => this.#page(DELIVERIES),
    'POST /webhooks/*/test': () => DELIVERIES[2],
    'POST /webhooks/*/rotate': () => ({ ...WEBHOOKS[0], secret: 'whsec_BBBB' }),
    'POST /webhooks/*/rotate/finish': () => WEBHOOKS[0],
    'POST /webhooks/*/deliveries/*/redeliver': () => [202, { ...DELIVERIES[0], state: 'pending' }],
    'GET /audit': () => this.#page(AUDIT),
    'GET /images': () => this.#page(IMAGES),
    'GET /data-sources': () => this.#page(this.sources),
    'POST /data-pulls': ({ body }) => {
      const { hub, model, token = null, ...named } = body;
      const made = { ...PULLED[0], ...named, id: id('dat', 9), pull: { ...PULLED[0].pull!, hub, model } };
      this.sources = [...this.sources, { ...made, pull: { ...made.pull, has_token: token !== null } }];
      return [201, made];
    },
    'POST /data-pulls/preview': () => PREVIEW,
    'POST /data-sources/*/pull': ({ params }) => this.#setPull(params[0], { state: 'running', error: null }),
    'DELETE /data-sources/*/pull': ({ params }) => this.#setPull(params[0], { state: 'cancelled' }),
    'GET /data-sources/*': ({ params }) => ({
      ...this.sources.find((source) => source.id === params[0])!,
      used_by_others: 2,
      used_by: [
        { type: 'deployment', id: DEPLOYMENTS[0].id, name: DEPLOYMENTS[0].name, version: 3, mount: 'input0' },
        { type: 'container', id: CONTAINERS[0].id, name: CONTAINERS[0].name, version: null, mount: 'home' },
      ],
    }),
    'PATCH /data-sources/*': ({ body }) => ({ ...SOURCES[0], ...body }),
    'POST /data-sources/*/measurement': () => [202, SOURCES[0]],
    'GET /compute': () => CAPACITY,
    'GET /containers': () => this.#page(CONTAINERS),
    'GET /containers/*': ({ params }) => this.#find(CONTAINERS, params[0]),
    'GET /containers/*/deploy-preview': ({ params }) => {
      const container = CONTAINERS.find((candidate) => candidate.id === params[0])!;
      const { image_id, compute, env, start_command, runtime } = container;
      return {
        name: 'fine-tuning',
        owner: container.owner,
        warnings: ['home_copied'],
        spec: {
          image_id,
          compute,
          env,
          start_command,
          runtime,
          bindings: container.bindings.map((binding) => ({ ...binding, mode: 'copy' })),
          health_path: '/v1/models',
          start_deadline_s: 1_200,
          grace_s: 30,
        },
      };
    },
    'POST /containers/*/deploy': () => [202, this.deployments[1]],
    'GET /deployments': ({ query }) =>
      this.#page(
        this.deployments.filter(
          ({ name, state }) =>
            (query.get('q') === null || name.toLowerCase().includes(query.get('q')!.toLowerCase())) &&
            (query.get('state') === null || state === query.get('state')),
        ),
      ),
    'POST /deployments': () => [202, this.deployments[1]],
    'GET /deployments/*': ({ params }) => this.#find(this.deployments, params[0]),
    'PATCH /deployments/*': ({ params, body, ifMatch }) => {
      const deployment = this.deployments.find((candidate) => candidate.id === params[0])!;
      if (ifMatch !== `"${deployment.rev}"`)
        return [412, { status: 412, code: 'stale', detail: 'changed by another user', errors: [] }];
      const upstream = body.upstream === undefined ? {} : { upstream: { ...deployment.upstream, ...body.upstream } };
      return Object.assign(deployment, body, upstream, { rev: deployment.rev + 1 });
    },
    'DELETE /deployments/*': ({ params }) => {
      this.deployments = this.deployments.filter((deployment) => deployment.id !== params[0]);
    },
    'PUT /deployments/*/access-control': ({ params, body }) => {
      const deployment = this.deployments.find((candidate) => candidate.id === params[0])!;
      Object.assign(deployment, { access_control: body.enabled, rev: deployment.rev + 1 });
      return { ...deployment, propagation: PROPAGATION, warnings: body.enabled === true ? ['no_key'] : [] };
    },
    'GET /deployments/*/canary': ({ params }) => ({ canary: params[0] === DEPLOYMENTS[0].id ? this.canary : null }),
    'POST /deployments/*/canary/promote': () => [202, Object.assign(this.canary, { state: 'promoting' })],
    'POST /deployments/*/canary/rollback': () => [202, Object.assign(this.canary, { state: 'rolled_back' })],
    'GET /deployments/*/upstream-versions': () => ({ data: UPSTREAM_VERSIONS }),
    'GET /deployments/*/versions': ({ params }) => this.#page(VERSIONS[params[0]] ?? []),
    'GET /deployments/*/versions/*': ({ params }) =>
      VERSIONS[params[0]]?.find(({ number }) => String(number) === params[1]) ?? [
        404,
        { status: 404, code: 'not_found', detail: 'this version does not exist' },
      ],
    'GET /deployments/*/versions/*/logs': ({ query }) => this.#logs(query),
    'GET /containers/*/logs': ({ query }) => this.#logs(query),
    'GET /deployments/*/versions/*/logs/download': ({ reply }) => {
      reply.send(200, { 'Content-Type': 'text/plain' }, 'all lines\n');
      return STREAMED;
    },
    'GET /deployments/*/versions/*/logs/follow': (call) =>
      this.#stream(call, [
        { seq: 61, at: at(20), stream: 'stdout', level: 'unknown', replica: 0, text: 'a line that came later' },
      ]),
    'GET /containers/*/logs/follow': (call) => this.#stream(call, []),
    'GET /deployments/*/metrics': () => metrics(),
    'GET /deployments/*/events': () => this.#page(EVENTS),
    'GET /deployments/*/events/stream': (call) => this.#stream(call, []),
    'GET /events/stream': (call) => this.#stream(call, []),
    'POST /deployments/*/test': ({ reply, body }) => {
      const stream = reply.stream(200, { 'Content-Type': 'text/event-stream' });
      const isRefused = body.auth.type === 'none' && this.deployments[0].access_control;
      const events = isRefused ? REFUSED : (POOLED[body.path]?.(JSON.parse(body.body)) ?? ANSWERED);
      for (const event of events) stream.write(`data: ${JSON.stringify(event)}\n\n`);
      stream.end();
      return STREAMED;
    },
  };

  #logs(query: URLSearchParams): unknown {
    if (query.get('before') !== null) {
      const data = LINES.map((line) => ({ ...line, seq: line.seq - LINES.length, text: `older ${line.seq}` }));
      return { data, next: null, first_seq: 1 - LINES.length, last_seq: 60 };
    }
    const q = query.get('q')?.toLowerCase() ?? '';
    const data = this.isEmpty
      ? []
      : LINES.filter(
          ({ text, stream, level }) =>
            text.toLowerCase().includes(q) &&
            (query.get('stream') ?? stream) === stream &&
            (query.get('level') !== 'warn' || level === 'warn'),
        );
    return { data, next: this.hasOlderLines ? 'older' : null, first_seq: 1, last_seq: 60 };
  }

  #stream({ reply }: Call, events: readonly LogLine[]): symbol {
    const stream = reply.stream(200, { 'Content-Type': 'text/event-stream' });
    stream.write(': here\n\n');
    for (const event of events) stream.write(`id: ${event.seq}\ndata: ${JSON.stringify(event)}\n\n`);
    return STREAMED;
  }
}

const STREAMED = Symbol('streamed');
const delta = (content: string) => `data: ${JSON.stringify({ choices: [{ index: 0, delta: { content } }] })}\n\n`;
export const REFUSED = [
  {
    type: 'head',
    status: 401,
    headers: [
      ['content-type', 'application/json'],
      ['www-authenticate', 'Bearer'],
    ],
    at_ms: 1.2,
  },
  {
    type: 'chunk',
    text: '{"error":{"message":"Expected an API key","type":"invalid_request_error","code":"invalid_api_key","param":null}}',
    at_ms: 1.4,
  },
  { type: 'end', at_ms: 1.5, connect_ms: 0.3, first_byte_ms: 1.2, bytes: 108, truncated: false },
];
/** Responses of an embedding model and a reranker, by path. */
const POOLED: Readonly<Record<string, (body: { input: string[]; documents: string[] }) => object[]>> = {
  '/v1/embeddings': ({ input }) =>
    asEvents({ data: input.map((text, index) => ({ index, embedding: [1, text.length, 0.5, -0.25, 0, 0.125] })) }),
  '/v1/rerank': ({ documents }) =>
    asEvents({
      results: documents.map((_document, i) => ({ index: documents.length - 1 - i, relevance_score: 1 / (i + 1) })),
    }),
};

function asEvents(body: object): object[] {
  return [
    { type: 'head', status: 200, headers: [['content-type', 'application/json']], at_ms: 9 },
    { type: 'chunk', text: JSON.stringify(body), at_ms: 10 },
    { type: 'end', at_ms: 11, connect_ms: 1, first_byte_ms: 9, bytes: 100, truncated: false },
  ];
}

export const ANSWERED = [
  {
    type: 'head',
    status: 200,
    headers: [
      ['content-type', 'text/event-stream; charset=utf-8'],
      ['x-request-id', '4f1d'],
      ['x-odd', '<script>alert(1)</script>'],
    ],
    at_ms: 38,
  },
  ...['Hello', ' there', ', <b>friend</b>', '!'].map((text, i) => ({
    type: 'chunk',
    text: delta(text),
    at_ms: 60 + i * 21.5,
  })),
  {
    type: 'chunk',
    text: `data: ${JSON.stringify({ choices: [], usage: { prompt_tokens: 9, completion_tokens: 4, total_tokens: 13 } })}\n\ndata: [DONE]\n\n`,
    at_ms: 150,
  },
  { type: 'end', at_ms: 151, connect_ms: 0.4, first_byte_ms: 38, bytes: 640, truncated: false },
];

function parse(text: string): any {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
