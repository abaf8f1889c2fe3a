import { setTimeout as sleep } from 'node:timers/promises';
import type { Command } from 'commander';
import { parseDuration } from '../access/durations';
import { ApiFailure, toLogLine } from '../api/client';
import type { LogLine, LogPage } from '../api/objects';
import { LOG_LINE_LEVELS } from '../driver/logs/log-level';
import { parseChoice, UsageError } from '../flag-values';
import { findContainer, findDeployment } from './find';
import type { CommandIo } from './io';
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

/** Mounts `capstan logs`. */
export function addLogsCommand(program: Command, io?: CommandIo): void {
  remote<Flags>(program, 'logs <name>', 'what a deployment prints, of its newest version', show, io)
    .option('-f, --follow', 'and what it prints from now on, until Ctrl-C')
    .option('--version <number>', 'of this version')
    .option('--container', 'NAME is a training container')
    .option('-n, --lines <number>', `the last so many lines, or all (default: ${DEFAULT_LINES})`)
    .option('--since <when>', 'from then on: a duration such as 10m, or a time such as 2030-01-31T12:00:00Z')
    .option('--stream <name>', 'stdout, stderr or system alone')
    .option(
      '--level <level>',
      'of this level or a graver one: error, warn, info or debug; unknown: lines that tell none',
    )
    .option('--replica <number>', 'of this replica alone')
    .option('--search <text>', 'lines with this text alone')
    .option('--times', 'with the time and the replica of each line')
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
    throw new UsageError(`--lines: expected a number or all, got '${flags.lines}'`);
  const limit = isAll ? Infinity : Number(flags.lines ?? DEFAULT_LINES);
  const query = filterOf(flags, io.now());
  const path = await logPath(call, name);
  const { lines, lastSeq } = await lastLines(client, path, query, limit);
  for (const line of lines) print(io, flags, line);
  if (flags.follow === true) await follow(call, path, query, lastSeq);
}

/** Until Ctrl-C: comes back where it was after the service was away. */
async function follow(
  { client, flags, io }: Call<Flags>,
  path: string,
  query: Readonly<Record<string, string | number>>,
  from: number,
): Promise<void> {
  for (let after = from, isTold = false; io.signal?.aborted !== true;) {
    try {
      for await (const event of client.stream('GET', `${path}/follow`, {
        query: { ...query, after },
        signal: io.signal,
      })) {
        const line = toLogLine(event);
        after = line.seq;
        isTold = false;
        print(io, flags, line);
      }
    } catch (error) {
      if (!(error instanceof ApiFailure) || error.status !== 0) throw error;
      if (!isTold) io.err(`${error.message}; it is tried again\n`);
      isTold = true;
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

/** The end of a log, read backwards page by page. */
async function lastLines(
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
    throw new UsageError(`--replica: expected a number, got '${replica}'`);
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
