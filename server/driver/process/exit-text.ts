import type { ReplicaEvent } from '../driver';
import type { ReplicaExit } from './replica-folder';

type Exited = Extract<ReplicaEvent, { type: 'exited' }>;

const GPU_MEMORY = /CUDA (error: )?out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|cuda\.OutOfMemoryError|torch\.OutOfMemoryError|HIP out of memory/i;
const HOST_MEMORY = /JavaScript heap out of memory|std::bad_alloc|^MemoryError\b|Cannot allocate memory/im;
/** What servers say that may not have their port. */
export const PORT_REFUSED = /EACCES|EADDRINUSE|permission denied|address already in use|cannot assign requested address/i;

/** How a replica ended, and how sure that is. @param lastLines Of its log. */
export function explainExit(replicaId: string, exit: ReplicaExit | undefined, lastLines: readonly string[]): Exited {
  const event = (message: string, outOfMemory?: Exited['outOfMemory']): Exited => ({
    type: 'exited', replicaId, exitCode: exit?.exitCode ?? null, signal: exit === undefined ? 'SIGKILL' : exit.signal, message, wasStopped: exit?.wasStopped ?? false,
    ...(outOfMemory === undefined ? {} : { outOfMemory }),
  });
  if (exit === undefined) return event('Its supervisor was killed, and it with it; how it would have ended is not known');
  if (exit.memory === 'cgroup') return event('It used more memory than it was given, and the kernel ended it', 'host');
  if (exit.memory === 'watch') return event('It used more memory than it was given, as measured twice a second, and was ended', 'host');
  if (exit.wasStopped) return event(exit.wasKilled ? 'It was stopped, and killed as it did not end in time' : 'It was stopped');
  if (exit.signal === 'SIGKILL') return event('It was killed by a signal that this service did not send: most often by the kernel, as the machine had no more memory', 'host');
  const text = lastLines.join('\n');
  const how = exit.signal === null ? `exit code ${exit.exitCode}` : `signal ${exit.signal}`;
  if (exit.exitCode !== 0 && GPU_MEMORY.test(text)) return event(`It ended with ${how}, and its log speaks of GPU memory that ran out`, 'gpu');
  if (exit.exitCode !== 0 && HOST_MEMORY.test(text)) return event(`It ended with ${how}, and its log speaks of memory that ran out`, 'host');
  return event(`It ended with ${how}`);
}
