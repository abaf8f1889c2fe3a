import { setTimeout as sleep } from 'node:timers/promises';
import type { Command } from 'commander';
import { type CommandIo, parseChoice, parseDuration, UsageError } from 'capstan/internal/cli';
import { ApiFailure, toLogLine } from '../api/client';
import type { LogLine, LogPage } from '../api/objects';
import { LOG_LINE_LEVELS } from '../driver/logs/log-level';
import { findContainer, findDeployment } from './find';
import { type Call, remote } from './remote';
import { defined } from './spec-flags';
import { plain } from './text';
import { parseNumber } from './versions';

interface Flags {
  version?: string;
  container?: boolean;
  follow?: boolean;
  lines?: string;
  since?: string;
  stream?: string;
  level?: string;
  replica?: string;
  search?: string;
  times?: boolean;
}

const DEFAULT_LINES = 200;
const RETRY_MS = 1_000;
const PAGE_LINES = 1_000;

/** Adds `capstan logs`. */
export function addLogsCommand(program: Command, io?: CommandIo): void {
  remote<Flags>(program, 'logs <name>', 'print the log of a deployment', show, io)
    .option('-f, --follow', 'keep printing new lines until Ctrl-C')
    .option('--version <number>', 'number of the version (default: the one being rolled out, else the active one)')
    .option('--container', 'print the log of the training container NAME')
    .option('-n, --lines <number>', `number of lines from the end, or all (default: ${DEFAULT_LINES})`)
    .option('--since <when>', 'only lines since then: a duration such as 10m, or a time such as 2030-01-31T12:00:00Z')
    .option('--stream <name>', 'only lines of this stream: stdout, stderr or system (lines of the service)')
    .option(
      '--level <level>',
      'only lines of this level or a more severe one: error, warn, info or debug; unknown: only lines without a level',
    )
    .option('--replica <number>', 'only lines of this replica; the first one is 0')
    .option('--search <text>', 'only lines with this text, case-insensitive')
    .option('--times', 'show the time, the replica and the stream of each line')
    .addHelpText('after', HELP_TAIL);
}

async function show(call: Call<Flags>): Promise<void> {
  const {
    client,
    flags,
    args: [name],
    io,
  } = call;
  const isAll = flags.lines === 'all';
  if (flags.lines !== undefined && !isAll && !/^\d{1,7}$/.test(flags.lines))
    throw new UsageError(`--lines: expected a whole number or all, got '${flags.lines}'`);
  const limit = isAll ? Infinity : Number(flags.lines ?? DEFAULT_LINES);
  const query = filterOf(flags, io.now());
  const path = await logPath(call, name);
  const { lines, lastSeq } = await readLastLines(client, path, query, limit);
  for (const line of lines) print(io, flags, line);
  if (flags.follow === true) await follow(call, path, query, lastSeq);
}

/** Prints new lines until Ctrl-C. Reconnects while the service is unreachable, and skips and repeats no line. */
async function follow(
  { client, flags, io }: Call<Flags>,
  path: string,
  query: Readonly<Record<string, string | number>>,
  from: number,
): Promise<void> {
  for (let after = from, hasWarned = false; io.signal?.aborted !== true;) {
    try {
      for await (const event of client.stream('GET', `${path}/follow`, {
        query: { ...query, after },
        signal: io.signal,
      })) {
        const line = toLogLine(event);
        after = line.seq;
        hasWarned = false;
        print(io, flags, line);
      }
    } catch (error) {
      if (!(error instanceof ApiFailure) || error.status !== 0) throw error;
      if (!hasWarned) io.err(`${error.message}; retrying\n`);
      hasWarned = true;
    }
    await sleep(RETRY_MS, undefined, { signal: io.signal });
  }
}

async function logPath({ client, flags }: Call<Flags>, name: string): Promise<string> {
  if (flags.container === true) return `/containers/${(await findContainer(client, name)).id}/logs`;
  const deployment = await findDeployment(client, name);
  const number =
    flags.version === undefined
      ? (deployment.target_version ??
        deployment.active_version ??
        (await client.versions.list(deployment.id))[0]?.number)
      : parseNumber(flags.version);
  if (number === undefined) throw new UsageError(`${name} has no version yet`);
  return `/deployments/${deployment.id}/versions/${number}/logs`;
}

/** Reads the end of a log, backwards and page by page. */
async function readLastLines(
  client: Call<Flags>['client'],
  path: string,
  query: Readonly<Record<string, string | number>>,
  limit: number,
): Promise<{ lines: LogLine[]; lastSeq: number }> {
  let lines: LogLine[] = [];
  let lastSeq: number | undefined;
  for (let before: string | null | undefined; lines.length < limit && before !== null;) {
    const page: LogPage = await client.request('GET', path, {
      query: { ...query, limit: Math.min(PAGE_LINES, limit - lines.length), ...defined('before', before) },
    });
    lines = [...page.data, ...lines];
    lastSeq ??= page.last_seq ?? 0;
    before = page.next;
  }
  return { lines, lastSeq: lastSeq ?? 0 };
}

function filterOf({ since, stream, level, replica, search }: Flags, nowMs: number): Record<string, string | number> {
  if (replica !== undefined && !/^\d{1,3}$/.test(replica))
    throw new UsageError(`--replica: expected a whole number, got '${replica}'`);
  return {
    ...defined('since', since === undefined ? undefined : timeOf(since, nowMs)),
    ...defined(
      'stream',
      stream === undefined ? undefined : parseChoice(stream, '--stream', ['stdout', 'stderr', 'system']),
    ),
    ...defined('level', level === undefined ? undefined : parseChoice(level, '--level', LOG_LINE_LEVELS)),
    ...defined('replica', replica === undefined ? undefined : Number(replica)),
    ...defined('q', search),
  };
}

function timeOf(text: string, nowMs: number): string {
  const atMs = /^\d{4}-/.test(text) ? Date.parse(text) : nowMs - parseDuration('--since', text);
  if (Number.isNaN(atMs))
    throw new UsageError(
      `--since: expected a duration such as 10m, or a time such as 2030-01-31T12:00:00Z, got '${text}'`,
    );
  return new Date(atMs).toISOString();
}

function print(io: CommandIo, { json, times }: { json?: boolean; times?: boolean }, line: LogLine): void {
  if (json) return io.out(`${JSON.stringify(line)}\n`);
  io.out(`${times === true ? `${line.at} ${line.replica} ${line.stream.padEnd(6)} ` : ''}${plain(line.text)}\n`);
}

const HELP_TAIL = `
Examples:
  capstan logs chat -f
  capstan logs chat --version 2 --stream stderr --times
  capstan logs chat --level warn
  capstan logs lab --container --since 10m
`;
