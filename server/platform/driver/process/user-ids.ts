import { createHash } from 'node:crypto';
import { DriverError } from '../driver';

/**
 * User ids of replicas on the host when the service runs as root. No other user has them: distributions and systemd
 * leave this range free. Each replica has its own, because the kernel counts much of what a program takes per user.
 * Only replicas that write to one folder share one.
 */
const FIRST_UID = 1_879_048_192;
export const MAX_USER_IDS = 4_096;

/** The user ids that running replicas have. */
export class UserIds {
  readonly #taken = new Map<string, { uid: number; group: string }>();

  /**
   * Takes a free id.
   * @param group What replicas must share to have the same id.
   * @param preferred Taken if it is free.
   * @throws DriverError `driver_lost` if there is none
   */
  take(replicaId: string, group = replicaId, preferred?: number): number {
    const taken = [...this.#taken.values()];
    const uid = taken.find((other) => other.group === group)?.uid ?? free(taken, group, replicaId, preferred);
    this.#taken.set(replicaId, { uid, group });
    return uid;
  }

  /** Notes that a replica of an earlier process has an id. */
  hold(replicaId: string, uid: number, group = replicaId): void {
    this.#taken.set(replicaId, { uid, group });
  }

  /** Call when no process of the replica runs any more. Its files may stay: other replicas cannot see them. */
  release(replicaId: string): void {
    this.#taken.delete(replicaId);
  }
}

/** Returns the lowest free id, or for a group the first free one after a place that depends on its name. */
function free(
  taken: readonly { uid: number }[],
  group: string,
  replicaId: string,
  preferred: number | undefined,
): number {
  const used = new Set(taken.map(({ uid }) => uid));
  const isOurs = preferred !== undefined && preferred >= FIRST_UID && preferred < FIRST_UID + MAX_USER_IDS;
  if (isOurs && !used.has(preferred)) return preferred;
  const start = group === replicaId ? 0 : createHash('sha256').update(group).digest().readUInt32BE(0);
  for (let n = 0; n < MAX_USER_IDS; n++) {
    const uid = FIRST_UID + ((start + n) % MAX_USER_IDS);
    if (!used.has(uid)) return uid;
  }
  throw new DriverError(
    'driver_lost',
    `All ${MAX_USER_IDS} user ids of replicas are in use: stop a deployment, and try again`,
  );
}
