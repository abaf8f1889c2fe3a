import type { Engine } from '../../ts/index';

const MAX_ATTEMPTS = 50;

/**
 * Runs `check` until a sequence was preempted. One attempt is not always enough: if this thread waits between
 * two calls, the first request ends before the second begins.
 */
export async function untilPreempted(engine: Engine, check: () => Promise<void>): Promise<void> {
  for (let i = 0; i < MAX_ATTEMPTS; i++) {
    await check();
    if (engine.stats().numPreemptions > 0) return;
  }
  throw new Error(`expected a preemption, got none in ${MAX_ATTEMPTS} attempts`);
}
