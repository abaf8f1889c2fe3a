import { DriverError } from '../driver';

/**
 * User ids of replicas on the host when the service runs as root. No other user has them: distributions and systemd
 * leave this range free. Each replica has its own, because the kernel counts much of what a program takes per user.
 */
const FIRST_UID = 1_879_048_192;
export const MAX_USER_IDS = 4_096;

/** The user ids that running replicas have. */
export class UserIds {
  readonly #taken = new Map<string, number>();

  /** Takes the lowest free id. @throws DriverError `driver_lost` if there is none */
  take(replicaId: string): number {
    const used = new Set(this.#taken.values());
    for (let uid = FIRST_UID; uid < FIRST_UID + MAX_USER_IDS; uid++) {
      if (used.has(uid)) continue;
      this.#taken.set(replicaId, uid);
      return uid;
    }
    throw new DriverError(
      'driver_lost',
      `All ${MAX_USER_IDS} user ids of replicas are in use: stop a deployment, and try again`,
    );
  }

  /** Notes that a replica of an earlier process has an id. */
  hold(replicaId: string, uid: number): void {
    this.#taken.set(replicaId, uid);
  }

  /** Call when no process of the replica runs any more. Its files may stay: other replicas cannot see them. */
  release(replicaId: string): void {
    this.#taken.delete(replicaId);
  }
}
