/** Tells whoever shows the page that the interface no longer knows us. */
const listeners = new Set<() => void>();

export function onSessionEnd(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function tellSessionEnd(): void {
  for (const listener of listeners) listener();
}
