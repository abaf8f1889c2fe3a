import { DISK_FULL } from 'capstan/internal';
import type { ExitCause, ReplicaEvent } from '../driver';
import type { ReplicaExit } from './replica-folder';
import type { Level } from './replica-layout';

type Exited = Extract<ReplicaEvent, { type: 'exited' }>;

/** Messages of servers that cannot listen on their port. */
export const PORT_REFUSED =
  /EACCES|EADDRINUSE|permission denied|address already in use|cannot assign requested address/i;
const NO_NETWORK =
  /\bEAI_AGAIN\b|\bENETUNREACH\b|Network is unreachable|Temporary failure in name resolution|Could not resolve host|Name or service not known/i;
/** Known log messages and their causes, most reliable first. */
const SIGNS: readonly { pattern: RegExp; cause: ExitCause; what: string }[] = [
  {
    pattern:
      /CUDA (error: )?out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|cuda\.OutOfMemoryError|torch\.OutOfMemoryError|HIP out of memory/i,
    cause: 'gpu_out_of_memory',
    what: 'a lack of GPU memory',
  },
  {
    pattern: /JavaScript heap out of memory|std::bad_alloc|^MemoryError\b|Cannot allocate memory/im,
    cause: 'out_of_memory',
    what: 'a lack of memory',
  },
  { pattern: DISK_FULL, cause: 'disk_full', what: 'a full disk' },
];

/**
 * A flag that `capstan serve` refuses.
 * NOTE: not the folder of the prefix cache, which the service chooses, and which may be there at the next start.
 */
const FLAG_ERROR = /^error: (--(?!prefix-cache-dir:)[a-z-]+: .{1,300})$/m;

const DISK_TEXTS = {
  bytes: 'Killed because it added more to its home than one replica may, which is measured every few seconds',
  entries: 'Killed because its home and its open files have too many entries to be measured in time',
  cache: 'Killed because the folder of its prefix cache held far more than its limit. The folder is removed',
  hidden:
    'Killed because the disk is almost full and the replica holds deleted files or processes that cannot be measured',
};

const WITHOUT_NETWORK =
  'at isolation level L2 a deployment cannot reach other machines. Mount all files that it needs as data sources';

/** Returns an explanation if the line is a network error of a replica without network access. */
export function networkHint(line: string, level: Level): string | undefined {
  return level === 'L2' && NO_NETWORK.test(line)
    ? `The replica tried to reach another machine: ${WITHOUT_NETWORK}`
    : undefined;
}

/** Explains how a replica ended, and how certain that is. @param lastLines The end of its log. */
export function explainExit(
  replicaId: string,
  level: Level,
  exit: ReplicaExit | undefined,
  lastLines: readonly string[],
): Exited {
  const event = (message: string, cause?: ExitCause): Exited => ({
    type: 'exited',
    replicaId,
    exitCode: exit?.exitCode ?? null,
    signal: exit === undefined ? 'SIGKILL' : exit.signal,
    message,
    wasStopped: exit?.wasStopped ?? false,
    ...(cause === undefined ? {} : { cause }),
  });
  if (exit === undefined) return event('The supervisor was killed, and the replica with it; the cause is unknown');
  if (exit.wasStopped) return event(exit.wasKilled ? 'Stopped: killed after the grace period' : 'Stopped');
  if (exit.disk !== undefined) return event(DISK_TEXTS[exit.disk], 'disk_quota_exceeded');
  if (exit.exitCode === 0) return event('Ended with exit code 0');
  if (exit.memory === 'cgroup')
    return event('Killed by the kernel because it exceeded its memory limit', 'out_of_memory');
  if (exit.memory === 'watch')
    return event('Killed because it exceeded its memory limit, which is measured twice a second', 'out_of_memory');
  if (exit.signal === 'SIGKILL')
    return event(
      `Killed by signal 9 (SIGKILL), which this service did not send: ${exit.memory === 'enough' ? 'the kernel reports no lack of memory' : 'by the kernel when the machine ran out of memory, or by another process'}`,
    );
  const text = lastLines.join('\n');
  const how = exit.signal === null ? `exit code ${exit.exitCode}` : `signal ${exit.signal}`;
  const sign = SIGNS.find(({ pattern }) => pattern.test(text));
  if (sign !== undefined) return event(`Ended with ${how}, and its log mentions ${sign.what}`, sign.cause);
  const flagError = exit.exitCode === 2 ? FLAG_ERROR.exec(text)?.[1] : undefined;
  if (flagError !== undefined) return { ...event(`Ended with ${how}: ${flagError}`), refusedFlag: true };
  return event(
    networkHint(text, level) === undefined
      ? `Ended with ${how}`
      : `Ended with ${how}, and its log mentions a network error: ${WITHOUT_NETWORK}`,
  );
}
