/** Listeners for a response that says that the session has ended. */
const listeners = new Set<() => void>();

export function onSessionEnd(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function notifySessionEnd(): void {
  for (const listener of listeners) listener();
}
