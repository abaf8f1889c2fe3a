import { type FileHandle, statfs } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { loadAddon } from '../addon';
import { CapstanError } from '../errors';
import { createHttp, type SendHttp } from './http';

/** What downloads use of the system. Tests replace parts of it. */
export interface HubSystem {
  env: NodeJS.ProcessEnv;
  send: SendHttp;
  now: () => number;
  /** Rejects when the signal is aborted. */
  sleep: (ms: number, signal: AbortSignal) => Promise<void>;
  /** Takes the lock of an open file, which ends when the file is closed. */
  tryLock: (descriptor: number) => boolean;
  /** Bytes that may be written to the disk of a folder. */
  freeDiskBytes: (folder: string) => Promise<number>;
  write: (file: FileHandle, bytes: Uint8Array, position: number) => Promise<void>;
  /** Memory that this process can still allocate. */
  freeMemoryBytes: () => number;
}

/** Runs work with the real system, and closes its connections. */
export async function withSystem<T>(parts: Partial<HubSystem>, work: (system: HubSystem) => Promise<T>): Promise<T> {
  const env = parts.env ?? process.env;
  const http = createHttp(env);
  try {
    return await work({
      env,
      send: http.send,
      now: Date.now,
      sleep: async (ms, signal) => {
        await sleep(ms, undefined, { signal });
      },
      tryLock: (descriptor) => loadAddon().tryLockFile(descriptor),
      freeDiskBytes,
      write: writeFully,
      freeMemoryBytes: () => loadAddon().availableMemoryBytes(),
      ...parts,
    });
  } finally {
    http.close();
  }
}

export async function freeDiskBytes(folder: string): Promise<number> {
  const { bavail, bsize } = await statfs(folder);
  return bavail * bsize;
}

export async function writeFully(file: FileHandle, bytes: Uint8Array, position: number): Promise<void> {
  for (let written = 0; written < bytes.length;) {
    const { bytesWritten } = await file.write(bytes, written, bytes.length - written, position + written);
    written += bytesWritten;
  }
}

/** @throws CapstanError `aborted` */
export function throwIfAborted(signal: AbortSignal | undefined, work: string): void {
  if (signal?.aborted === true) throw new CapstanError('aborted', `The ${work} was aborted`, { cause: signal.reason });
}
