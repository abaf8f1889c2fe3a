import { setTimeout as pause } from 'node:timers/promises';
import { loadAddon } from '../addon';

/** Objects are collected in bursts. Memory is returned to the system once after each burst. */
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
 * Reports the native memory of an object that the caller no longer needs, because its library does not. V8 then
 * collects it in time, and the freed memory is returned to the system.
 */
export function reportExternalMemory(object: object, numBytes: number): void {
  collected.register(object, numBytes);
  // Deferred until the caller has dropped its reference, so that a collection that this triggers can free the object.
  setImmediate(() => loadAddon().adjustExternalMemory(numBytes));
}
