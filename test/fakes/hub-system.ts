import { createHttp } from '../../ts/hub/http';
import type { HubSystem } from '../../ts/hub/system';

/** Records how long a download would have waited. */
export type TestSystem = HubSystem & { waits: number[] };

const closers: (() => void)[] = [];

/** Closes the connections of all systems. */
export function closeTestSystems(): void {
  for (const close of closers.splice(0)) close();
}

/** A system without waiting and without locks. */
export function testSystem(env: NodeJS.ProcessEnv, parts: Partial<HubSystem> = {}): TestSystem {
  const waits: number[] = [];
  const { send, close } = createHttp(env);
  closers.push(close);
  return {
    env,
    send,
    now: () => 1_000_000,
    sleep: (ms) => {
      waits.push(ms);
      return Promise.resolve();
    },
    tryLock: () => true,
    freeDiskBytes: () => Promise.resolve(2 ** 40),
    write: async (file, bytes, position) => {
      await file.write(bytes, 0, bytes.length, position);
    },
    freeMemoryBytes: () => 2 ** 40,
    waits,
    ...parts,
  };
}
