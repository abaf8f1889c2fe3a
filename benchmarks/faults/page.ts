/** The page of results of one run. */
import { cpus } from 'node:os';
import { spreadOf } from '../../server/bench/summary';
import type { Recovery } from './injector';
import type { Ledger } from './ledger';
import type { Growth } from './memory-samples';

export interface Results {
  database: string;
  minutes: number;
  seed: number;
  commit: string;
  ledger: Ledger;
  recoveries: readonly Recovery[];
  growth: Growth | undefined;
  numRemains: number;
  isAuditIntact: boolean;
  logMessages: ReadonlyMap<string, number>;
}

const MAX_PROBLEMS = 30;

export function pageOf(results: Results): string {
  const { database, minutes, seed, commit, ledger, growth } = results;
  const { counts, numProblems, problems } = ledger;
  const chats = Object.entries(counts).filter(([name]) => name.startsWith('chat '));
  const others = Object.entries(counts).filter(([name]) => !name.startsWith('chat '));
  return `# Faults: ${database}

\`benchmarks/faults.ts --database ${database} --minutes ${minutes} --seed ${seed}\`, ${new Date().toISOString().slice(0, 10)}, commit ${commit}, ${cpus()[0].model}, ${cpus().length} cores (shared).

\`capstan up\` serves the embedded model in four deployments, one of them with two replicas. Clients chat, leave and read slowly. Others change keys and make versions. Broken start scripts come and go. Meanwhile faults are injected one after the other.

${
  numProblems === 0
    ? '**No problem was found.**'
    : `**${numProblems} problems:**\n\n${problems
        .slice(0, MAX_PROBLEMS)
        .map((problem) => `- ${problem}`)
        .join('\n')}`
}

| check | result |
|---|---|
| wrong or silently cut answers | ${chats.find(([name]) => name === 'chat wrong')?.[1] ?? 0} of ${sum(chats).toLocaleString('en-US')} |
| audit chain | ${results.isAuditIntact ? 'intact' : 'broken'} |
| left behind after the end | ${results.numRemains} |
| memory of the service | ${growth === undefined ? 'too short to measure' : `${growth.residentMib.toFixed(0)} MiB, changed by ${growth.residentGrowthMib.toFixed(1)} MiB over the last ${growth.minutes.toFixed(0)} minutes`} |
| descriptors of the service | ${growth === undefined ? 'too short to measure' : `${growth.descriptors.toFixed(1)}, changed by ${growth.descriptorGrowth.toFixed(1)}`} |

## Recovery

Seconds from the end of the cause until every deployment answers right and a change succeeds.

| fault | times | median | longest | bound |
|---|---|---|---|---|
${recoveryRows(results.recoveries).join('\n')}

## Counts

| what | count |
|---|---|
${[...chats, ...others]
  .sort(([a], [b]) => a.localeCompare(b))
  .map(([name, count]) => `| ${name} | ${count.toLocaleString('en-US')} |`)
  .join('\n')}

## Log of the service

Warnings and errors, by message.

| message | times |
|---|---|
${[...results.logMessages].map(([message, count]) => `| ${message.replaceAll('|', '\\|')} | ${count} |`).join('\n')}
`;
}

function sum(entries: readonly [string, number][]): number {
  return entries.reduce((total, [, count]) => total + count, 0);
}

function recoveryRows(recoveries: readonly Recovery[]): string[] {
  return [...new Set(recoveries.map(({ fault }) => fault))].sort().map((fault) => {
    const own = recoveries.filter((recovery) => recovery.fault === fault);
    const seconds = own.map((recovery) => recovery.seconds);
    const longest = Math.max(...seconds);
    const cells = [fault, own.length, spreadOf(seconds, []).median.toFixed(1), longest.toFixed(1), own[0].boundS];
    return `| ${cells.join(' | ')} |`;
  });
}

/** Counts warnings and errors of the service's log by message. */
export function messagesOf(log: string): Map<string, number> {
  const counts = new Map<string, number>();
  for (const line of log.split('\n')) {
    const message = messageOf(line);
    if (message !== undefined) counts.set(message, (counts.get(message) ?? 0) + 1);
  }
  return new Map([...counts].sort());
}

const WARNING = 40;

function messageOf(line: string): string | undefined {
  try {
    const { level, msg } = JSON.parse(line);
    const isWarning = level === 'warn' || level === 'error' || level >= WARNING;
    return isWarning ? `${level}: ${msg}` : undefined;
  } catch {
    return line.startsWith('error:') ? line.slice(0, 200) : undefined;
  }
}
