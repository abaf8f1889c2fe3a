import { setTimeout as pause } from 'node:timers/promises';
import { loadAddon } from '../addon';

/** Freeing comes in waves; the allocator is asked once after each. */
const TRIM_AFTER_MS = 1_000;

let isTrimming = false;

const collected = new FinalizationRegistry<number>((numBytes) => {
  loadAddon().adjustExternalMemory(-numBytes);
  if (isTrimming) return;
  isTrimming = true;
  void pause(TRIM_AFTER_MS, undefined, { ref: false }).then(() => {
    isTrimming = false;
    return loadAddon().trimMemory();
  });
});

/**
 * For an object of a native library that tells V8 nothing of the much that it holds, once nobody needs it any more: V8 looks for garbage in time, and what is
 * freed goes back to the system instead of staying with the allocator.
 */
export function discard(object: object, numBytes: number): void {
  collected.register(object, numBytes);
  // When the caller has let go of it.
  setImmediate(() => loadAddon().adjustExternalMemory(numBytes));
}
