import { CidrList } from './cidr';
import { EXPIRY_MODULUS, type KeyRecord, type TableDigest } from './feed';
import { type Fingerprint, FingerprintSlots } from './fingerprint';
import type { KeyBudget, KeyLimits } from './key-values';

/** One key in memory. Replaced as a whole when the key changes. */
export interface KeyEntry {
  readonly keyId: string;
  readonly publicId: string;
  readonly ownerId: string;
  readonly isEnabled: boolean;
  readonly expiresAt: number | null;
  readonly limits: KeyLimits | null;
  readonly budget: KeyBudget | null;
  /** Null: from everywhere. */
  readonly networks: CidrList | null;
  /** Null: every deployment of the owner. */
  readonly deployments: readonly string[] | null;
  readonly secret: SecretEntry | undefined;
  /** What a rotation replaced, while its grace lasts. */
  readonly olderSecret: SecretEntry | undefined;
  readonly rev: number;
}

export interface SecretEntry {
  readonly version: number;
  readonly validUntil: number | null;
  /** The argon2id string, dropped once the fingerprint is known. */
  hash: string | undefined;
  /** Where the fingerprint is; -1 while it is not known in this process. */
  slot: number;
}

export type Match = 'match' | 'mismatch' | 'unknown';

const NO_SLOT = -1;

/** Every key of the database, by public id. Knows no clock and no database; the follower keeps it current. */
export class KeyTable {
  readonly #entries = new Map<string, KeyEntry>();
  readonly #publicIds = new Map<string, string>();
  /** Ids of owners and deployments come again and again. */
  readonly #shared = new Map<string, string>();
  /** An office has one list and many keys. */
  readonly #sharedNetworks = new Map<string, CidrList>();
  readonly #slots = new FingerprintSlots();
  readonly #dummySlot = this.#slots.add(new Int32Array(8));
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

  /** Takes a key as the database has it; one that is older than what is here changes nothing. */
  apply(record: KeyRecord): void {
    const old = this.#entries.get(record.publicId);
    if (old !== undefined && record.rev < old.rev) return;
    const keep = (secret: KeyRecord['secrets'][number] | undefined) =>
      secret === undefined ? undefined : this.#keepSecret(old, secret);
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
      secret: keep(record.secrets[0]),
      olderSecret: keep(record.secrets[1]),
      rev: record.rev,
    };
    if (old !== undefined) this.#leave(old, [entry.secret, entry.olderSecret]);
    this.#entries.set(record.publicId, entry);
    this.#publicIds.set(record.id, record.publicId);
    this.#count(entry, 1);
  }

  remove(keyId: string): void {
    const publicId = this.#publicIds.get(keyId);
    const entry = publicId === undefined ? undefined : this.#entries.get(publicId);
    if (entry === undefined) return;
    this.#leave(entry, []);
    this.#entries.delete(entry.publicId);
    this.#publicIds.delete(keyId);
  }

  /** Drops the keys that a complete reading did not find. */
  retain(keyIds: ReadonlySet<string>): void {
    for (const keyId of [...this.#publicIds.keys()]) if (!keyIds.has(keyId)) this.remove(keyId);
  }

  /**
   * The same two comparisons, each in constant time, whether the id is known (`entry`), the key is rotating, or neither. `unknown`: argon2
   * has to decide.
   */
  match(entry: KeyEntry | undefined, fingerprint: Fingerprint, nowMs: number): Match {
    const isFirst = this.#equals(entry?.secret, fingerprint);
    const isSecond = this.#equals(entry?.olderSecret, fingerprint);
    if ((isFirst && isKnown(entry?.secret, nowMs)) || (isSecond && isKnown(entry?.olderSecret, nowMs))) return 'match';
    return isOpen(entry?.secret, nowMs) || isOpen(entry?.olderSecret, nowMs) ? 'unknown' : 'mismatch';
  }

  /** What argon2 still has to decide for this key. */
  unknownSecrets(entry: KeyEntry, nowMs: number): SecretEntry[] {
    return [entry.secret, entry.olderSecret].filter((secret): secret is SecretEntry => isOpen(secret, nowMs));
  }

  /** Remembers the fingerprint of a secret that was verified, or made here; false when the key no longer has this secret. */
  learn(publicId: string, version: number, hash: string | undefined, fingerprint: Fingerprint): boolean {
    const entry = this.#entries.get(publicId);
    const secret = [entry?.secret, entry?.olderSecret].find((candidate) => candidate?.version === version);
    if (secret === undefined) return false;
    if (secret.slot !== NO_SLOT) return this.#slots.equals(secret.slot, fingerprint);
    if (hash !== undefined && secret.hash !== hash) return false;
    secret.slot = this.#slots.add(fingerprint);
    secret.hash = undefined;
    return true;
  }

  /** Where there is no fingerprint to compare with, the dummy's is: its answer is never used. */
  #equals(secret: SecretEntry | undefined, fingerprint: Fingerprint): boolean {
    return this.#slots.equals(
      secret === undefined || secret.slot === NO_SLOT ? this.#dummySlot : secret.slot,
      fingerprint,
    );
  }

  /** A version of a key never gets another secret, so its fingerprint stays. */
  #keepSecret(old: KeyEntry | undefined, { version, hash, validUntil }: KeyRecord['secrets'][number]): SecretEntry {
    const known = [old?.secret, old?.olderSecret].find(
      (secret) => secret?.version === version && secret.slot !== NO_SLOT,
    );
    return { version, validUntil, hash: known === undefined ? hash : undefined, slot: known?.slot ?? NO_SLOT };
  }

  #leave(old: KeyEntry, kept: readonly (SecretEntry | undefined)[]): void {
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

function isKnown(secret: SecretEntry | undefined, nowMs: number): boolean {
  return secret !== undefined && secret.slot !== NO_SLOT && isLive(secret, nowMs);
}

/** Live, and its fingerprint is not known yet. */
function isOpen(secret: SecretEntry | undefined, nowMs: number): secret is SecretEntry {
  return secret !== undefined && secret.slot === NO_SLOT && isLive(secret, nowMs);
}
