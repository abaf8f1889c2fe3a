import type { Fingerprint } from './fingerprint';
import type { Denied, Granted } from './outcome';

/** Why a request that was let in must end: `denial` is what it would be told now. */
export class RevokedError extends Error {
  override readonly name = 'RevokedError';
  readonly denial: Denied;

  constructor(denial: Denied) {
    super('The API key lost its right while the request was running');
    this.denial = denial;
  }
}

/** What a grant needs of the check that made it. */
export interface GrantKeeper {
  /** The denial that a grant would meet now, else undefined. */
  denialOf(grant: Grant): Denied | undefined;
  /** Tells the end of a request. */
  finish(grant: Grant, tokens: number): void;
}

/** A request that was let in by a key of the database. */
export class Grant implements Granted {
  readonly ok = true;
  readonly keyId: string;
  readonly ownerId: string;
  readonly publicId: string;
  readonly fingerprint: Fingerprint;
  readonly targetId: string;
  readonly address: string;
  /** Gives back what the limits counted. */
  readonly release: ((tokens: number) => void) | undefined;
  readonly #keeper: GrantKeeper;
  readonly #watched: Set<Grant> | undefined;
  #revoking: AbortController | undefined;
  #isOpen = true;

  constructor(
    keeper: GrantKeeper,
    watched: Set<Grant> | undefined,
    key: { keyId: string; ownerId: string; publicId: string },
    presented: { fingerprint: Fingerprint; targetId: string; address: string },
    release?: (tokens: number) => void,
  ) {
    this.#keeper = keeper;
    this.#watched = watched;
    this.keyId = key.keyId;
    this.ownerId = key.ownerId;
    this.publicId = key.publicId;
    this.fingerprint = presented.fingerprint;
    this.targetId = presented.targetId;
    this.address = presented.address;
    this.release = release;
  }

  /** Made when it is first asked for: most requests are over before anybody could revoke anything. */
  get signal(): AbortSignal | undefined {
    if (this.#watched === undefined) return undefined;
    if (this.#revoking === undefined) {
      this.#revoking = new AbortController();
      if (this.#isOpen) this.#watched.add(this);
      this.recheck();
    }
    return this.#revoking.signal;
  }

  /** Ends the request if its key lost the right. */
  recheck(): void {
    if (!this.#isOpen) return;
    const denial = this.#keeper.denialOf(this);
    if (denial === undefined) return;
    this.#watched?.delete(this);
    this.#revoking?.abort(new RevokedError(denial));
  }

  done(tokens = 0): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#watched?.delete(this);
    this.#keeper.finish(this, tokens);
  }
}
