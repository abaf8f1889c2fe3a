import { pipeline } from 'node:stream';
import { createGzip } from 'node:zlib';
import { header, type HttpReply, type HttpRequest, sendPieces, SseStream } from 'capstan/internal';
import type { LogPage as Page } from '../../driver/logs/log';
import { levelOf, LOG_LINE_LEVELS, type LogLineLevel } from '../../driver/logs/log-level';
import type { LogFilter, LogLine } from '../../driver/logs/log-line';
import { LogExpiredError } from '../../driver/logs/log-store';
import type { ApiContext } from '../context';
import { addFollower } from '../followers';
import { input } from '../json-schema';
import { LogPage } from '../objects';
import { ApiProblem } from '../problem';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';
import { msOf, timeOf } from '../times';

const SEQ = { type: 'integer', minimum: 0, maximum: Number.MAX_SAFE_INTEGER } as const;
const FILTER = {
  stream: { type: 'string', enum: ['stdout', 'stderr', 'system'] },
  level: {
    type: 'string',
    enum: LOG_LINE_LEVELS,
    description: 'Lines of this level or more severe, if the level is recognizable. `unknown`: lines without a level',
  },
  replica: { type: 'integer', minimum: 0, maximum: 1_000_000, description: 'Ordinal of the replica' },
  since: { type: 'string', format: 'date-time' },
  until: { type: 'string', format: 'date-time' },
  q: { type: 'string', minLength: 1, maxLength: 1_000, description: 'Plain text, case-insensitive' },
} as const;
const PAGE_QUERY = input({
  ...FILTER,
  limit: { type: 'integer', minimum: 1, maximum: 1_000, default: 200 },
  after: {
    ...SEQ,
    description: 'Lines after this number. `next` is then the next value of `after`. 0: from the first stored line',
  },
  before: {
    ...SEQ,
    description:
      'The last lines before this number. `next` is then the next value of `before`. Default: the last lines',
  },
});
const FOLLOW_QUERY = input({
  ...FILTER,
  after: {
    ...SEQ,
    description:
      'Lines after this number, then new lines. `Last-Event-ID` takes precedence. Without either: new lines only',
  },
});

const SSE = { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 };
const PAGE_LINES = 1_000;
/** A user who has lost access may see lines for this long. */
const RECHECK_MS = 5_000;

type Filter = {
  stream?: LogLine['stream'];
  level?: LogLineLevel;
  replica?: number;
  since?: string;
  until?: string;
  q?: string;
};

/** Finds the log that a path names and checks the caller's access. Throws ServiceError `not_found`. */
type FindLog = (call: ApiCall<unknown>) => Promise<{ logId: string; name: string }>;

const ofVersion: FindLog = async ({ context: { store }, actor, params: { id, n } }) => {
  if (!/^[1-9]\d{0,8}$/.test(n)) throw new ApiProblem('not_found', 'this version does not exist');
  return { logId: (await store.getVersion(actor, id, Number(n))).id, name: `${id}-${n}` };
};
const ofContainer: FindLog = async ({ context: { store }, actor, params: { id } }) => ({
  logId: (await store.getContainer(actor, id)).id,
  name: id,
});

export const ROUTES: readonly ApiRoute[] = [
  ...routesOf('/api/v1/deployments/{id}/versions/{n}/logs', 'versions', 'a version', ofVersion),
  ...routesOf('/api/v1/containers/{id}/logs', 'containers', 'a training container', ofContainer),
];

function routesOf(path: string, tag: string, object: string, find: FindLog): ApiRoute[] {
  return [
    defineRoute({
      method: 'GET',
      path,
      summary: `Read the log of ${object}: numbered lines, including those of the service itself`,
      tag,
      auth: 'any',
      query: PAGE_QUERY,
      responses: { 200: LogPage },
      problems: ['expired_range'],
      handle: async (call) => {
        const { limit, after, before, ...filter } = call.query;
        if (after !== undefined && before !== undefined)
          throw new ApiProblem('invalid_request', '?after: not allowed together with before', {
            errors: [{ pointer: '?after', message: 'not allowed together with before' }],
          });
        const { logId } = await find(call);
        const page = await logsOf(call)
          .read(logId, {
            limit,
            ...(after === undefined ? {} : { after }),
            ...(before === undefined ? {} : { before }),
            ...toFilter(filter),
          })
          .catch(asProblem);
        return { status: 200, body: pageView(page) };
      },
    }),
    defineRoute({
      method: 'GET',
      path: `${path}/follow`,
      summary: `Follow the log of ${object}: one event per line, with its number as the id`,
      tag,
      auth: 'any',
      query: FOLLOW_QUERY,
      responses: { 200: 'text/event-stream' },
      problems: ['expired_range', 'too_many_attempts'],
      handle: async (call) => {
        const { request, signal, actor } = call;
        const { after, ...filter } = call.query;
        const { logId } = await find(call);
        const logs = logsOf(call);
        const from = lastEventId(request) ?? after ?? (await logs.read(logId, { limit: 1 })).lastSeq ?? 0;
        // Report expired lines before the stream begins.
        await logs.read(logId, { after: from, limit: 1 }).catch(asProblem);
        const removeFollower = addFollower(actor.userId);
        return {
          stream: (reply) =>
            follow(whileAllowed(call, find, logs.follow(logId, from, toFilter(filter), signal)), reply).finally(
              removeFollower,
            ),
        };
      },
    }),
    defineRoute({
      method: 'GET',
      path: `${path}/download`,
      summary: `Download the log of ${object} as gzipped text`,
      tag,
      auth: 'any',
      query: input(FILTER),
      responses: { 200: 'application/gzip' },
      handle: async (call) => {
        const { logId, name } = await find(call);
        const logs = logsOf(call);
        const groups = whileAllowed(call, find, storedLines(logs, logId, toFilter(call.query)));
        return { stream: (reply) => download(groups, name, reply, call.signal) };
      },
    }),
  ];
}

type Logs = NonNullable<ApiContext['logs']>;

function logsOf({ context: { logs } }: ApiCall<unknown>): Logs {
  if (logs === undefined) throw new ApiProblem('unavailable', 'this process runs no deployments and keeps no logs');
  return logs;
}

function toFilter({ stream, level, replica, since, until, q }: Filter): LogFilter {
  return {
    ...(stream === undefined ? {} : { stream }),
    ...(level === undefined ? {} : { level }),
    ...(replica === undefined ? {} : { replica }),
    ...(q === undefined ? {} : { text: q }),
    ...(since === undefined ? {} : { since: msOf(since) }),
    ...(until === undefined ? {} : { until: msOf(until) }),
  };
}

function lastEventId(request: HttpRequest): number | undefined {
  const text = header(request, 'last-event-id');
  return text !== undefined && /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}

function asProblem(error: unknown): never {
  throw error instanceof LogExpiredError ? new ApiProblem('expired_range', error.message) : error;
}

function pageView({ lines, next, firstSeq, lastSeq }: Page): LogPage {
  return {
    data: lines.map(lineView),
    next: next === undefined ? null : String(next),
    first_seq: firstSeq ?? null,
    last_seq: lastSeq ?? null,
  };
}

function lineView({ seq, at, stream, replica, text }: LogLine): LogPage['data'][number] {
  return { seq, at: timeOf(at), stream, level: levelOf({ stream, text }), replica, text };
}

/** Passes lines on while the caller may read the log. Checks the access from time to time. */
async function* whileAllowed(
  call: ApiCall<unknown>,
  find: FindLog,
  groups: AsyncIterable<readonly LogLine[]>,
): AsyncGenerator<readonly LogLine[], void> {
  const { now } = call.context;
  let checkedMs = now();
  for await (const lines of groups) {
    if (now() - checkedMs > RECHECK_MS) {
      await find(call);
      checkedMs = now();
    }
    yield lines;
  }
}

async function follow(groups: AsyncIterable<readonly LogLine[]>, reply: HttpReply): Promise<void> {
  const sse = new SseStream(reply, {}, SSE);
  sse.open();
  try {
    for await (const lines of groups)
      await sse.sendEvents(lines.map((line) => ({ id: line.seq, data: JSON.stringify(lineView(line)) })));
    sse.end();
  } catch {
    // The client is too slow, or its lines have expired. It reconnects with the number of its last line.
    sse.destroy();
  }
}

async function download(
  groups: AsyncIterable<readonly LogLine[]>,
  name: string,
  reply: HttpReply,
  signal: AbortSignal,
): Promise<void> {
  const stream = reply.stream(200, {
    'Content-Type': 'application/gzip',
    'Content-Disposition': `attachment; filename="${name}.log.gz"`,
  });
  // The reader of the gzip stream gets its errors.
  const gzip = pipeline(textOf(groups), createGzip(), () => {});
  // The response has begun, so that its early end is the only sign of an error.
  await sendPieces(stream, gzip, { signal }).catch(() => {});
}

async function* textOf(groups: AsyncIterable<readonly LogLine[]>): AsyncGenerator<string, void> {
  for await (const lines of groups)
    yield lines.map((line) => `${timeOf(line.at)} ${line.replica} ${line.stream} ${line.text}\n`).join('');
}

/** Reads all stored lines. Skips those that expire meanwhile. */
async function* storedLines(logs: Logs, logId: string, filter: LogFilter): AsyncGenerator<readonly LogLine[], void> {
  let after: number | undefined = (await logs.read(logId, { limit: 1 })).firstSeq ?? 1;
  while (after !== undefined) {
    const page: Pick<Page, 'lines' | 'next'> = await logs
      .read(logId, { after: Math.max(after - 1, 0), limit: PAGE_LINES, ...filter })
      .catch((error: unknown) => {
        if (error instanceof LogExpiredError) return { lines: [], next: error.firstSeq - 1 };
        throw error;
      });
    if (page.lines.length > 0) yield page.lines;
    after = page.next === undefined ? undefined : page.next + 1;
  }
}
