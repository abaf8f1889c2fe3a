import { CidrList } from './cidr';
import { EXPIRY_MODULUS, type KeyRecord, type TableDigest } from '../feed/feed';
import { FINGERPRINT_BYTES, type Fingerprint, FingerprintSlots } from './fingerprint';
import type { KeyBudget, KeyLimits } from '../keys/values';

/** A key in memory. A change replaces the whole entry. */
export interface KeyEntry {
  readonly keyId: string;
  readonly publicId: string;
  readonly ownerId: string;
  readonly isEnabled: boolean;
  readonly expiresAt: number | null;
  readonly limits: KeyLimits | null;
  readonly budget: KeyBudget | null;
  /** Null allows every address. */
  readonly networks: CidrList | null;
  /** Null allows every deployment of the owner. */
  readonly deployments: readonly string[] | null;
  readonly secret: SecretEntry | undefined;
  /** The secret before the last rotation, valid during the grace period. */
  readonly olderSecret: SecretEntry | undefined;
  readonly rev: number;
}

export interface SecretEntry {
  readonly version: number;
  readonly validUntil: number | null;
  /** The argon2id string. Undefined once the fingerprint is known. */
  hash: string | undefined;
  /** Slot of the fingerprint, or -1 until this process has verified the secret. */
  slot: number;
}

export type Match = 'match' | 'mismatch' | 'unknown';

const NO_SLOT = -1;

/** All keys of the database by public id, kept up to date by the follower. */
export class KeyTable {
  readonly #entries = new Map<string, KeyEntry>();
  readonly #publicIds = new Map<string, string>();
  /** One string for each owner or deployment id, shared by all entries. */
  readonly #shared = new Map<string, string>();
  /** Parsed lists by their text: many keys have the same list. */
  readonly #sharedNetworks = new Map<string, CidrList>();
  readonly #slots = new FingerprintSlots();
  readonly #dummySlot = this.#slots.add(Buffer.alloc(FINGERPRINT_BYTES));
  readonly #digest: TableDigest = { numKeys: 0, numEnabled: 0, revSum: 0, expirySum: 0, numSecrets: 0, numBindings: 0 };

  get size(): number {
    return this.#entries.size;
  }

  get digest(): Readonly<TableDigest> {
    return this.#digest;
  }

  get(publicId: string): KeyEntry | undefined {
    return this.#entries.get(publicId);
  }

  /** Returns the key with an id such as `key_…`. */
  withId(keyId: string): KeyEntry | undefined {
    const publicId = this.#publicIds.get(keyId);
    return publicId === undefined ? undefined : this.#entries.get(publicId);
  }

  /** Inserts or replaces a key. Ignores a record older than the entry. */
  apply(record: KeyRecord): void {
    const old = this.#entries.get(record.publicId);
    if (old !== undefined && record.rev < old.rev) return;
    const toSecret = (secret: KeyRecord['secrets'][number] | undefined) =>
      secret === undefined ? undefined : this.#toSecretEntry(old, secret);
    const entry: KeyEntry = {
      keyId: record.id,
      publicId: record.publicId,
      ownerId: this.#share(record.ownerId),
      isEnabled: record.isEnabled,
      expiresAt: record.expiresAt,
      limits: record.limits,
      budget: record.budget,
      networks: record.allowedCidrs === null ? null : this.#shareNetworks(record.allowedCidrs),
      deployments: record.deployments?.map((id) => this.#share(id)) ?? null,
      secret: toSecret(record.secrets[0]),
      olderSecret: toSecret(record.secrets[1]),
      rev: record.rev,
    };
    if (old !== undefined) this.#drop(old, [entry.secret, entry.olderSecret]);
    this.#entries.set(record.publicId, entry);
    this.#publicIds.set(record.id, record.publicId);
    this.#count(entry, 1);
  }

  remove(keyId: string): void {
    const publicId = this.#publicIds.get(keyId);
    const entry = publicId === undefined ? undefined : this.#entries.get(publicId);
    if (entry === undefined) return;
    this.#drop(entry, []);
    this.#entries.delete(entry.publicId);
    this.#publicIds.delete(keyId);
  }

  /** Removes every key that is not in `keyIds`. */
  retain(keyIds: ReadonlySet<string>): void {
    for (const keyId of [...this.#publicIds.keys()]) if (!keyIds.has(keyId)) this.remove(keyId);
  }

  /**
   * Compares a fingerprint with both secrets of a key. Always makes two constant-time comparisons, so timing does not
   * show whether the key exists or rotates. `unknown` means that argon2 has to decide.
   */
  match(entry: KeyEntry | undefined, fingerprint: Fingerprint, nowMs: number): Match {
    const isFirst = this.#equals(entry?.secret, fingerprint);
    const isSecond = this.#equals(entry?.olderSecret, fingerprint);
    if (isFirst && isVerified(entry?.secret, nowMs)) return 'match';
    if (isSecond && isVerified(entry?.olderSecret, nowMs)) return 'match';
    return isUnverified(entry?.secret, nowMs) || isUnverified(entry?.olderSecret, nowMs) ? 'unknown' : 'mismatch';
  }

  /** Returns the valid secrets of a key that still need an argon2 run. */
  unverifiedSecrets(entry: KeyEntry, nowMs: number): SecretEntry[] {
    return [entry.secret, entry.olderSecret].filter((secret): secret is SecretEntry => isUnverified(secret, nowMs));
  }

  /** Stores the fingerprint of a verified secret. Returns false if the key no longer has this secret. */
  addFingerprint(publicId: string, version: number, hash: string | undefined, fingerprint: Fingerprint): boolean {
    const entry = this.#entries.get(publicId);
    const secret = [entry?.secret, entry?.olderSecret].find((candidate) => candidate?.version === version);
    if (secret === undefined) return false;
    if (secret.slot !== NO_SLOT) return this.#slots.equals(secret.slot, fingerprint);
    if (hash !== undefined && secret.hash !== hash) return false;
    secret.slot = this.#slots.add(fingerprint);
    secret.hash = undefined;
    return true;
  }

  /** Compares with a dummy if there is no fingerprint. The caller ignores that result. */
  #equals(secret: SecretEntry | undefined, fingerprint: Fingerprint): boolean {
    return this.#slots.equals(
      secret === undefined || secret.slot === NO_SLOT ? this.#dummySlot : secret.slot,
      fingerprint,
    );
  }

  /** Keeps a known fingerprint: the secret of a version never changes. */
  #toSecretEntry(old: KeyEntry | undefined, { version, hash, validUntil }: KeyRecord['secrets'][number]): SecretEntry {
    const known = [old?.secret, old?.olderSecret].find(
      (secret) => secret?.version === version && secret.slot !== NO_SLOT,
    );
    return { version, validUntil, hash: known === undefined ? hash : undefined, slot: known?.slot ?? NO_SLOT };
  }

  /** Removes an entry from the digest and releases its slots, except those of `kept`. */
  #drop(old: KeyEntry, kept: readonly (SecretEntry | undefined)[]): void {
    this.#count(old, -1);
    for (const secret of [old.secret, old.olderSecret]) {
      if (secret !== undefined && secret.slot !== NO_SLOT && !kept.some((other) => other?.slot === secret.slot))
        this.#slots.release(secret.slot);
    }
  }

  #count(entry: KeyEntry, sign: 1 | -1): void {
    const digest = this.#digest;
    digest.numKeys += sign;
    if (entry.isEnabled) digest.numEnabled += sign;
    digest.revSum += sign * entry.rev;
    digest.expirySum += sign * ((entry.expiresAt ?? 0) % EXPIRY_MODULUS);
    digest.numSecrets += sign * (Number(entry.secret !== undefined) + Number(entry.olderSecret !== undefined));
    digest.numBindings += sign * (entry.deployments?.length ?? 0);
  }

  #shareNetworks(cidrs: readonly string[]): CidrList {
    const text = cidrs.join();
    const known = this.#sharedNetworks.get(text) ?? CidrList.ofStored(cidrs);
    this.#sharedNetworks.set(text, known);
    return known;
  }

  #share(id: string): string {
    const known = this.#shared.get(id);
    if (known !== undefined) return known;
    this.#shared.set(id, id);
    return id;
  }
}

function isLive({ validUntil }: SecretEntry, nowMs: number): boolean {
  return validUntil === null || validUntil > nowMs;
}

function isVerified(secret: SecretEntry | undefined, nowMs: number): boolean {
  return secret !== undefined && secret.slot !== NO_SLOT && isLive(secret, nowMs);
}

function isUnverified(secret: SecretEntry | undefined, nowMs: number): secret is SecretEntry {
  return secret !== undefined && secret.slot === NO_SLOT && isLive(secret, nowMs);
}
