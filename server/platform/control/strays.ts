import type { Driver } from '../driver/driver';

/** Time between SIGTERM and SIGKILL. */
export const TERM_MS = 10_000;

/**
 * Stops the replicas of this machine that are not in `known`: another service has taken over their deployments, or
 * their rows are gone. Their GPUs are free after that.
 */
export async function stopStrays(
  driver: Pick<Driver, 'list' | 'stop'>,
  known: readonly string[],
  onError: (error: unknown, replicaId: string) => void,
): Promise<void> {
  const found = await driver.list().catch((error: unknown) => {
    onError(error, 'all');
    return [];
  });
  const strays = found.filter((id) => !known.includes(id));
  await Promise.all(strays.map((id) => driver.stop(id, TERM_MS).catch((error: unknown) => onError(error, id))));
}
