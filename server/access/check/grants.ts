import { ApiError } from '../../base/errors';
import type { Reach } from '../../base/reach';
import type { Fingerprint } from './fingerprint';
import type { Denied, Granted } from './outcome';

/** Abort reason of a request whose key lost access. `denial` is what a new request would get. */
export class RevokedError extends ApiError {
  override readonly name = 'RevokedError';
  readonly denial: Denied;

  constructor(denial: Denied) {
    super(denial.code, 'The API key lost access while the request was running', { headers: { ...denial.headers } });
    this.denial = denial;
  }
}

/** The part of the check that a grant calls back. */
export interface GrantIssuer {
  /** Returns the denial that the request would get now, or undefined. */
  denialOf(grant: Grant): Denied | undefined;
  /** Releases limits and records tokens at the end of a request. */
  finish(grant: Grant, tokens: number): void;
}

/** A request admitted by a key of the database. */
export class Grant implements Granted {
  readonly ok = true;
  readonly keyId: string;
  readonly ownerId: string;
  readonly publicId: string;
  /** Undefined: the key was found by its id. */
  readonly fingerprint: Fingerprint | undefined;
  /** Undefined: no deployment gets the request. */
  readonly targetId: string | undefined;
  readonly address: string;
  readonly reach: Reach;
  /** Releases the concurrency slot and counts the tokens. */
  readonly release: ((tokens: number) => void) | undefined;
  readonly #issuer: GrantIssuer;
  readonly #watched: Set<Grant> | undefined;
  #revoking: AbortController | undefined;
  #isOpen = true;

  constructor(
    issuer: GrantIssuer,
    watched: Set<Grant> | undefined,
    key: { keyId: string; ownerId: string; publicId: string; deployments: Reach },
    presented: { fingerprint: Fingerprint | undefined; targetId: string | undefined; address: string },
    release?: (tokens: number) => void,
  ) {
    this.#issuer = issuer;
    this.#watched = watched;
    this.keyId = key.keyId;
    this.ownerId = key.ownerId;
    this.publicId = key.publicId;
    this.reach = key.deployments;
    this.fingerprint = presented.fingerprint;
    this.targetId = presented.targetId;
    this.address = presented.address;
    this.release = release;
  }

  /** Created on first access, because most requests never need it. */
  get signal(): AbortSignal | undefined {
    if (this.#watched === undefined) return undefined;
    if (this.#revoking === undefined) {
      this.#revoking = new AbortController();
      if (this.#isOpen) this.#watched.add(this);
      this.recheck();
    }
    return this.#revoking.signal;
  }

  /** Aborts the request if its key has lost access. */
  recheck(): void {
    if (!this.#isOpen) return;
    const denial = this.#issuer.denialOf(this);
    if (denial === undefined) return;
    this.#watched?.delete(this);
    this.#revoking?.abort(new RevokedError(denial));
  }

  done(tokens = 0): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#watched?.delete(this);
    this.#issuer.finish(this, tokens);
  }
}
