import { DISK_FULL } from '../../disk-full';
import type { ExitCause, ReplicaEvent } from '../driver';
import type { ReplicaExit } from './replica-folder';
import type { Level } from './world';

type Exited = Extract<ReplicaEvent, { type: 'exited' }>;

/** What servers say that may not have their port. */
export const PORT_REFUSED =
  /EACCES|EADDRINUSE|permission denied|address already in use|cannot assign requested address/i;
const NO_NETWORK =
  /\bEAI_AGAIN\b|\bENETUNREACH\b|Network is unreachable|Temporary failure in name resolution|Could not resolve host|Name or service not known/i;
/** What a log speaks of, the surest first. */
const SIGNS: readonly { pattern: RegExp; cause: ExitCause; what: string }[] = [
  {
    pattern:
      /CUDA (error: )?out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|cuda\.OutOfMemoryError|torch\.OutOfMemoryError|HIP out of memory/i,
    cause: 'gpu_out_of_memory',
    what: 'GPU memory that ran out',
  },
  {
    pattern: /JavaScript heap out of memory|std::bad_alloc|^MemoryError\b|Cannot allocate memory/im,
    cause: 'out_of_memory',
    what: 'memory that ran out',
  },
  { pattern: DISK_FULL, cause: 'disk_full', what: 'a disk that is full' },
];

const WITHOUT_NETWORK =
  'nothing here has a way out to the network (level L2): what it needs has to come with its data bindings or its home';

/** For whoever reads the log of a script that tries to reach out; undefined where the line says nothing of it, or there is a network. */
export function networkHint(line: string, level: Level): string | undefined {
  return level === 'L2' && NO_NETWORK.test(line) ? `It tried to reach another machine: ${WITHOUT_NETWORK}` : undefined;
}

/** How a replica ended, and how sure that is. @param lastLines Of its log. */
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
  if (exit === undefined)
    return event('Its supervisor was killed, and it with it; how it would have ended is not known');
  if (exit.wasStopped)
    return event(exit.wasKilled ? 'It was stopped, and killed as it did not end in time' : 'It was stopped');
  if (exit.exitCode === 0) return event('It ended with exit code 0');
  if (exit.memory === 'cgroup')
    return event('It used more memory than it was given, and the kernel ended it', 'out_of_memory');
  if (exit.memory === 'watch')
    return event('It used more memory than it was given, as measured twice a second, and was ended', 'out_of_memory');
  if (exit.signal === 'SIGKILL')
    return event(
      `It was killed by signal 9 (SIGKILL), which this service did not send: ${exit.memory === 'enough' ? 'not for lack of memory, as the kernel counts it' : 'the kernel sends it when the machine has no more memory, and so does anybody who may'}`,
    );
  const text = lastLines.join('\n');
  const how = exit.signal === null ? `exit code ${exit.exitCode}` : `signal ${exit.signal}`;
  const sign = SIGNS.find(({ pattern }) => pattern.test(text));
  if (sign !== undefined) return event(`It ended with ${how}, and its log speaks of ${sign.what}`, sign.cause);
  return event(
    networkHint(text, level) === undefined
      ? `It ended with ${how}`
      : `It ended with ${how}, and its log speaks of a network: ${WITHOUT_NETWORK}`,
  );
}
