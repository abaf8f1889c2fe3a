import { randomBytes } from 'node:crypto';
import path from 'node:path';
import type * as Argon2 from '@node-rs/argon2';
import { Access } from '../../../../server/access';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import { Api } from '../../../../server/platform/api/api';
import type { ApiContext, ApiSettings } from '../../../../server/platform/api/context';
import type { ApiRoute } from '../../../../server/platform/api/route';
import { apiRoutes } from '../../../../server/platform/api/routes';
import type { HttpReply, HttpRequest } from '../../../../server/http/transport';
import type { Log } from '../../../../server/base/log';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import { type Resolve, resolveByDns } from '../../../../server/platform/outbound/endpoint';
import { WebhookSender } from '../../../../server/platform/webhooks/webhook-sender';
import { fakeClock, makeFolder, removeFolders } from '../../access/support';
import { machine, STORE_OPTIONS } from '../support';

/** Hashes with the lowest cost: these tests need hashes, not their strength. */
const argon2 = jest.requireActual<typeof Argon2>('@node-rs/argon2');
const { hash } = argon2;
jest
  .spyOn(argon2, 'hash')
  .mockImplementation((secret, options) => hash(secret, { ...options, memoryCost: 1_024, timeCost: 2 }));

export const PASSWORD = 'correct horse battery';
export const HOST = 'console.test:8090';
export const ORIGIN = `http://${HOST}`;

export interface Reply {
  status: number;
  headers: Record<string, string>;
  text: string;
  /** JSON, else undefined. */
  body: any;
}

/** The management API over a separate database, without sockets. */
export class Service {
  readonly store: ServiceStore;
  readonly access: Access;
  readonly api: Api;
  readonly context: ApiContext;
  readonly clock: ReturnType<typeof fakeClock>;
  readonly logged: string[];
  readonly location: DatabaseLocation;
  /** Root of data sources. */
  readonly dataRoot: string;
  /** Resolves the host names of webhooks. */
  resolve: Resolve = resolveByDns;
  /** All responses so far. */
  readonly replies: Reply[] = [];

  private constructor(
    store: ServiceStore,
    access: Access,
    api: Api,
    context: ApiContext,
    clock: ReturnType<typeof fakeClock>,
    logged: string[],
    location: DatabaseLocation,
    dataRoot: string,
  ) {
    this.store = store;
    this.access = access;
    this.api = api;
    this.context = context;
    this.clock = clock;
    this.logged = logged;
    this.location = location;
    this.dataRoot = dataRoot;
  }

  static async open(
    settings: Partial<ApiSettings> = {},
    location: DatabaseLocation = { kind: 'file', file: path.join(makeFolder(), 'capstan.db') },
    routes: readonly ApiRoute[] = apiRoutes(),
    opened?: ServiceStore,
  ): Promise<Service> {
    const clock = fakeClock();
    const logged: string[] = [];
    const line = (...parts: unknown[]) => void logged.push(JSON.stringify(parts));
    const log = {
      debug: line,
      info: line,
      warn: line,
      error: (fields: { err?: Error }, message: string) => line({ ...fields, err: fields.err?.stack }, message),
    } as unknown as Log;
    const dataRoot = makeFolder();
    const store =
      opened ??
      (await openServiceStore(
        { location, ...STORE_OPTIONS, secretKey: randomBytes(32), machine: machine({ dataRoots: [dataRoot] }) },
        clock.now,
      ));
    const access = await Access.open({ store, now: clock.now });
    const webhooks = new WebhookSender({ store, log, allowsPrivate: false, resolve: (name) => service.resolve(name) });
    const context = {
      store,
      access,
      webhooks,
      log,
      now: clock.now,
      settings: { isSecure: false, ownOrigins: [], trustedProxies: [], sessionGuard: 'secret', ...settings },
    } as unknown as ApiContext;
    const service: Service = new Service(
      store,
      access,
      new Api({ routes, context }),
      context,
      clock,
      logged,
      location,
      dataRoot,
    );
    return service;
  }

  async close(): Promise<void> {
    await this.access.close();
    await this.store.close();
    removeFolders();
  }

  async send(
    method: string,
    target: string,
    {
      headers = {},
      body,
      remoteAddress = '192.0.2.1',
    }: { headers?: Record<string, string>; body?: string; remoteAddress?: string } = {},
  ): Promise<Reply> {
    const [pathname, query = ''] = target.split('?');
    const all = Object.entries({
      host: HOST,
      ...headers,
      ...(body === undefined ? {} : { 'content-length': String(Buffer.byteLength(body)) }),
    }).map(([name, value]) => [name.toLowerCase(), value] as const);
    const request: HttpRequest = {
      method,
      path: pathname,
      query,
      headers: all,
      remoteAddress,
      signal: new AbortController().signal,
      readBody: () => Promise.resolve(Buffer.from(body ?? '')),
    };
    const reply = new RecordedReply();
    await this.api.handle(request, reply);
    const { status, text } = reply;
    const sent: Reply = {
      status,
      headers: reply.headers,
      text,
      body: /json/.test(reply.headers['content-type'] ?? '') ? JSON.parse(text) : undefined,
    };
    this.replies.push(sent);
    return sent;
  }

  /** Creates an account and signs a browser in with it. */
  async person(email: string, name = email.split('@')[0]): Promise<Person> {
    const { userId } = await this.store.createAccount({ email, name, password: PASSWORD });
    const person = new Person(this, userId, email);
    await person.signIn();
    return person;
  }

  /** Creates the first administrator and signs a browser in. */
  async admin(): Promise<Person> {
    const account = await this.store.ensureFirstAdmin({ email: 'root@example.com', name: 'Root', password: PASSWORD });
    const person = new Person(this, account!.userId, 'root@example.com');
    await person.signIn();
    return person;
  }
}

/** Expects no stored secret in any response, and a key or token only in the response that created it. */
export function expectNoSecrets(replies: readonly Reply[]): void {
  for (const { text, status } of replies) {
    expect(text).not.toMatch(/\$argon2|_hash":|"totp_secret":/);
    const shown = text.match(/sk-cap1_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}|mt-[0-9A-Za-z]{43}|whsec_[0-9A-Za-z+/=]+/g) ?? [];
    expect([status, shown.length]).toEqual([
      status,
      shown.length === 1 && (status === 200 || status === 201) && /"(secret|token)":"(sk-|mt-|whsec_)/.test(text)
        ? 1
        : 0,
    ]);
  }
}

class RecordedReply implements HttpReply {
  status = 0;
  headers: Record<string, string> = {};
  text = '';
  hasStarted = false;

  send(status: number, headers: Readonly<Record<string, string>>, body: string): void {
    this.#begin(status, headers);
    this.text = body;
  }

  stream(status: number, headers: Readonly<Record<string, string>>) {
    this.#begin(status, headers);
    return {
      write: (text: string) => {
        this.text += text;
        return true;
      },
      drained: () => Promise.resolve(),
      end: () => {},
      destroy: () => {},
    };
  }

  #begin(status: number, headers: Readonly<Record<string, string>>): void {
    this.hasStarted = true;
    this.status = status;
    this.headers = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
  }
}

/** A browser with the console: keeps its cookie and sends the console's headers. */
export class Person {
  readonly userId: string;
  readonly email: string;
  cookie = '';
  csrfToken = '';
  /** In the storage of the console's origin. */
  sessionSecret = '';
  readonly #service: Service;

  constructor(service: Service, userId: string, email: string) {
    this.#service = service;
    this.userId = userId;
    this.email = email;
  }

  /** The headers that identify the session. */
  get credentials(): Record<string, string> {
    return this.cookie === '' ? {} : { cookie: this.cookie, 'x-session-secret': this.sessionSecret };
  }

  async signIn(password = PASSWORD, otp?: string): Promise<Reply> {
    const reply = await this.send('POST', '/api/v1/auth/login', {
      email: this.email,
      password,
      ...(otp === undefined ? {} : { otp }),
    });
    if (reply.status === 204) await this.readCsrfToken();
    return reply;
  }

  async readCsrfToken(): Promise<void> {
    this.csrfToken = (await this.get('/api/v1/me')).body.csrf_token;
  }

  /** Joins an organization with an invitation from `inviter`. */
  async join(orgId: string, inviter: Person, role: string): Promise<Reply> {
    const {
      body: { token },
    } = await inviter.post(`/api/v1/orgs/${orgId}/invitations`, { email: this.email, role });
    return this.post('/api/v1/invitations/accept', { token });
  }

  get(target: string): Promise<Reply> {
    return this.send('GET', target);
  }

  post(target: string, body: unknown = {}, headers: Record<string, string> = {}): Promise<Reply> {
    return this.send('POST', target, body, headers);
  }

  async send(method: string, target: string, body?: unknown, headers: Record<string, string> = {}): Promise<Reply> {
    const reply = await this.#service.send(method, target, {
      headers: {
        ...this.credentials,
        ...(method === 'GET' ? {} : { origin: ORIGIN, 'x-csrf-token': this.csrfToken }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const cookie = reply.headers['set-cookie'];
    if (cookie !== undefined) this.cookie = cookie.split(';')[0];
    this.sessionSecret = reply.headers['x-session-secret'] ?? this.sessionSecret;
    return reply;
  }

  /** Returns a function that sends requests with a new management token of this user. */
  async token(
    rights: 'read' | 'write',
  ): Promise<(method: string, target: string, body?: unknown, headers?: Record<string, string>) => Promise<Reply>> {
    const {
      body: { token },
    } = await this.post('/api/v1/tokens', { name: rights, rights });
    return (method, target, body, headers = {}) =>
      this.#service.send(method, target, {
        headers: {
          authorization: `Bearer ${token}`,
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...headers,
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
  }
}
