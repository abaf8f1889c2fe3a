/** The log routes over real logs: pages both ways, filters, following, download. The store decides about access. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { Api } from '../../../../server/platform/api/api';
import type { ApiContext } from '../../../../server/platform/api/context';
import { ROUTES } from '../../../../server/platform/api/routes/logs';
import type { NewLogLine } from '../../../../server/platform/driver/logs/log-line';
import { LogStore } from '../../../../server/platform/driver/logs/log-store';
import type { HttpReply, HttpRequest } from '../../../../server/http/transport';
import type { ServiceActor } from '../../../../server/platform/accounts/actor';
import { ServiceError } from '../../../../server/platform/store/errors';
import { type Person, Service } from './support';

const DEPLOYMENT = 'dep_1';
const VERSION = 'ver_1';
const CONTAINER = 'con_1';
const VERSION_LOGS = `/api/v1/deployments/${DEPLOYMENT}/versions/1/logs`;
const CONTAINER_LOGS = `/api/v1/containers/${CONTAINER}/logs`;

let service: Service;
let api: Api;
let owner: Person;
let stranger: Person;
let folder: string;
let logs: LogStore;
/** Whether the owner may read. */
let mayRead: boolean;

beforeAll(async () => {
  service = await Service.open();
  owner = await service.person('owner@example.com');
  stranger = await service.person('stranger@example.com');
});
afterAll(() => service.close());
beforeEach(() => {
  mayRead = true;
  folder = mkdtempSync(join(tmpdir(), 'capstan-log-routes-'));
  logs = new LogStore({ folder, redact: (text) => text, segmentBytes: 500, maxBytes: 5_000 });
  const mine = async ({ userId }: ServiceActor, id: string) => {
    if (userId !== owner.userId || !mayRead) throw new ServiceError('not_found', 'object not found');
    return { id };
  };
  const store = {
    ...service.store,
    getVersion: (actor: ServiceActor, _id: string, number: number) =>
      mine(actor, number === 1 ? VERSION : `ver_${number}`),
    getContainer: (actor: ServiceActor) => mine(actor, CONTAINER),
  };
  api = new Api({ routes: ROUTES, context: { ...service.context, store, logs } as unknown as ApiContext });
});
afterEach(async () => {
  await logs.close();
  rmSync(folder, { recursive: true });
});

/** Records a streamed response. Calls `onWrite` with each piece. */
class Recorded implements HttpReply {
  hasStarted = false;
  status = 0;
  headers: Readonly<Record<string, unknown>> = {};
  bytes = Buffer.alloc(0);
  state = 'open';
  onWrite: (() => void) | undefined;
  /** Whether the client reads nothing. */
  isStalled = false;
  #onDestroy: (() => void)[] = [];

  send(status: number, headers: any, body: any): void {
    Object.assign(this, { hasStarted: true, status, headers, bytes: Buffer.from(body ?? ''), state: 'ended' });
  }
  stream(status: number, headers: any) {
    Object.assign(this, { hasStarted: true, status, headers });
    return {
      write: (data: string | Uint8Array) => {
        this.bytes = Buffer.concat([this.bytes, Buffer.from(data as string)]);
        this.onWrite?.();
        return !this.isStalled;
      },
      drained: () =>
        this.isStalled ? new Promise<void>((resolve) => this.#onDestroy.push(resolve)) : Promise.resolve(),
      end: () => {
        this.state = 'ended';
      },
      destroy: () => {
        this.state = 'destroyed';
        this.#onDestroy.forEach((resolve) => resolve());
      },
    };
  }
  get text(): string {
    return this.bytes.toString();
  }
  get body(): any {
    return JSON.parse(this.text);
  }
  get events(): { id: string; data: any }[] {
    return [...this.text.matchAll(/id: (\d+)\ndata: (.*)\n\n/g)].map(([, id, data]) => ({
      id,
      data: JSON.parse(data),
    }));
  }
}

async function ask(
  person: Person,
  target: string,
  {
    headers = [],
    signal = new AbortController().signal,
    onWrite,
  }: { headers?: [string, string][]; signal?: AbortSignal; onWrite?: (reply: Recorded) => void } = {},
): Promise<Recorded> {
  const [path, query = ''] = target.split('?');
  const request: HttpRequest = {
    method: 'GET',
    path,
    query,
    headers: [['host', 'console.test:8090'], ...Object.entries(person.credentials), ...headers],
    remoteAddress: '192.0.2.1',
    signal,
    readBody: () => Promise.resolve(Buffer.alloc(0)),
  };
  const reply = new Recorded();
  if (onWrite !== undefined) reply.onWrite = () => onWrite(reply);
  await api.handle(request, reply);
  return reply;
}

const line = (text: string, more: Partial<NewLogLine> = {}): NewLogLine => ({
  at: 1_700_000_000_000,
  stream: 'stdout',
  replica: 0,
  text,
  ...more,
});
const write = (from: number, to: number, logId = VERSION) =>
  logs.append(
    logId,
    Array.from({ length: to - from + 1 }, (_, i) => line(`line ${from + i}`)),
  );
const seqs = ({ body }: Recorded): number[] => body.data.map(({ seq }: { seq: number }) => seq);

test('returns the last lines by default, and pages with before and after', async () => {
  await write(1, 30);
  const last = await ask(owner, `${VERSION_LOGS}?limit=10`);
  expect([last.status, seqs(last), last.body.next, last.body.first_seq, last.body.last_seq]).toEqual([
    200,
    [21, 22, 23, 24, 25, 26, 27, 28, 29, 30],
    '21',
    1,
    30,
  ]);
  expect(last.body.data[0]).toEqual({
    seq: 21,
    at: '2023-11-14T22:13:20.000Z',
    stream: 'stdout',
    level: 'unknown',
    replica: 0,
    text: 'line 21',
  });
  expect(seqs(await ask(owner, `${VERSION_LOGS}?limit=10&before=21`))).toEqual([
    11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
  ]);
  const first = await ask(owner, `${VERSION_LOGS}?limit=25&after=0`);
  expect([seqs(first).at(-1), first.body.next]).toEqual([25, '25']);
  const rest = await ask(owner, `${VERSION_LOGS}?limit=25&after=25`);
  expect([seqs(rest), rest.body.next]).toEqual([[26, 27, 28, 29, 30], null]);
});

test('an empty log is a page without lines', async () => {
  expect((await ask(owner, VERSION_LOGS)).body).toEqual({ data: [], next: null, first_seq: null, last_seq: null });
});

test('containers have separate logs', async () => {
  await write(1, 1);
  await write(1, 2, CONTAINER);
  expect(seqs(await ask(owner, CONTAINER_LOGS))).toEqual([1, 2]);
});

test('filters', async () => {
  await logs.append(VERSION, [
    line('a'),
    line('b', { stream: 'stderr' }),
    line('B again', { replica: 1 }),
    line('late', { at: 1_800_000_000_000 }),
  ]);
  const find = async (query: string) => seqs(await ask(owner, `${VERSION_LOGS}?${query}`));
  expect(await find('stream=stderr')).toEqual([2]);
  expect(await find('replica=1')).toEqual([3]);
  expect(await find('q=b')).toEqual([2, 3]);
  await logs.append(VERSION, [line('ERROR: e', { at: 1 }), line('{"level":40}', { at: 1 })]);
  expect([await find('level=error'), await find('level=warn'), await find('level=unknown')]).toEqual([
    [5],
    [5, 6],
    [1, 2, 3, 4],
  ]);
  expect(await find('since=2027-01-01T00:00:00Z')).toEqual([4]);
  expect(await find('until=2027-01-01T00:00:00Z')).toEqual([1, 2, 3, 5, 6]);
});

test.each([
  'limit=0',
  'limit=1001',
  'after=-1',
  'after=x',
  'stream=other',
  'since=yesterday',
  'level=loud',
  'after=1&before=2',
  'q=',
])('refuses %s', async (query) => {
  expect((await ask(owner, `${VERSION_LOGS}?${query}`)).status).toBe(400);
});

test('reports expired lines, in pages and before a stream', async () => {
  for (let i = 1; i < 400; i += 5) await write(i, i + 4);
  const {
    body: { first_seq: firstSeq },
  } = await ask(owner, VERSION_LOGS);
  expect(firstSeq).toBeGreaterThan(10);
  for (const target of [`${VERSION_LOGS}?after=1`, `${VERSION_LOGS}/follow?after=1`]) {
    const reply = await ask(owner, target);
    expect([reply.status, reply.body.code]).toEqual([416, 'expired_range']);
  }
});

test('strangers and invalid version numbers get 404', async () => {
  await write(1, 3);
  for (const target of [
    VERSION_LOGS,
    `${VERSION_LOGS}/follow`,
    `${VERSION_LOGS}/download`,
    CONTAINER_LOGS,
    `${CONTAINER_LOGS}/follow`,
    `${CONTAINER_LOGS}/download`,
  ])
    expect((await ask(stranger, target)).status).toBe(404);
  for (const number of ['0', '-1', 'x', '1e3', '99999999999'])
    expect((await ask(owner, VERSION_LOGS.replace('/1/', `/${number}/`))).status).toBe(404);
});

test('follows from the last event id with existing and new lines', async () => {
  await write(1, 5);
  const controller = new AbortController();
  const following = ask(owner, `${VERSION_LOGS}/follow?after=1`, {
    headers: [['last-event-id', '3']],
    signal: controller.signal,
    onWrite: ({ events }) => {
      if (events.length === 2) void write(6, 7);
      if (events.length === 4) controller.abort();
    },
  });
  const { events, headers, status } = await following;
  expect([status, headers['Content-Type']]).toEqual([200, 'text/event-stream; charset=utf-8']);
  expect(events.map(({ id }) => id)).toEqual(['4', '5', '6', '7']);
  expect(events[0].data).toMatchObject({ seq: 4, text: 'line 4' });
});

test('follows only new lines by default', async () => {
  await write(1, 5);
  const controller = new AbortController();
  let isBegun = false;
  const { events } = await ask(owner, `${VERSION_LOGS}/follow`, {
    signal: controller.signal,
    onWrite: ({ events: heard }) => {
      if (!isBegun) void write(6, 6);
      isBegun = true;
      if (heard.length === 1) controller.abort();
    },
  });
  expect(events.map(({ id }) => id)).toEqual(['6']);
});

test('limits the logs that one user follows at once, and counts down when one ends', async () => {
  const controller = new AbortController();
  const following = Array.from({ length: 100 }, () =>
    ask(owner, `${VERSION_LOGS}/follow`, { signal: controller.signal }),
  );
  const refused = await new Promise<Recorded>((resolve) =>
    setImmediate(() => {
      const retry = (): void =>
        void ask(owner, `${VERSION_LOGS}/follow`, { signal: AbortSignal.timeout(50) }).then((reply) =>
          reply.status === 429 ? resolve(reply) : retry(),
        );
      retry();
    }),
  );
  expect(refused.body.code).toBe('too_many_attempts');
  controller.abort();
  await Promise.all(following);
  const last = new AbortController();
  expect(
    (await ask(owner, `${VERSION_LOGS}/follow`, { signal: last.signal, onWrite: () => last.abort() })).status,
  ).toBe(200);
});

test('downloads all lines as gzipped text', async () => {
  await write(1, 40);
  await logs.append(VERSION, [line('oops', { stream: 'stderr', replica: 2 })]);
  const reply = await ask(owner, `${VERSION_LOGS}/download`);
  expect([reply.status, reply.headers['Content-Type'], reply.headers['Content-Disposition'], reply.state]).toEqual([
    200,
    'application/gzip',
    `attachment; filename="${DEPLOYMENT}-1.log.gz"`,
    'ended',
  ]);
  const lines = gunzipSync(reply.bytes).toString().trimEnd().split('\n');
  expect(lines).toHaveLength(41);
  expect([lines[0], lines[40]]).toEqual([
    '2023-11-14T22:13:20.000Z 0 stdout line 1',
    '2023-11-14T22:13:20.000Z 2 stderr oops',
  ]);
  expect(gunzipSync((await ask(owner, `${VERSION_LOGS}/download?q=oops`)).bytes).toString()).toBe(
    '2023-11-14T22:13:20.000Z 2 stderr oops\n',
  );
});

test('a download whose client reads nothing ends with the call', async () => {
  await write(1, 40);
  const controller = new AbortController();
  const { state } = await ask(owner, `${VERSION_LOGS}/download`, {
    signal: controller.signal,
    onWrite: (reply) => {
      reply.isStalled = true;
      setImmediate(() => controller.abort());
    },
  });
  expect(state).toBe('destroyed');
});

test('a download ends when the caller loses access to the log', async () => {
  await write(1, 40);
  const { lines } = await logs.read(VERSION, { limit: 40 });
  let numPages = 0;
  jest.spyOn(logs, 'read').mockImplementation(async () => {
    service.clock.advance(10_000);
    mayRead = numPages < 3;
    return { lines, firstSeq: 1, lastSeq: 40, next: ++numPages < 10 ? 40 : undefined };
  });
  const { state } = await ask(owner, `${VERSION_LOGS}/download`);
  expect([state, numPages]).toEqual(['destroyed', 4]);
});
