import type { ApiKey, NewKey } from './keys/api-key';
import { CatchUp } from './feed/catch-up';
import { HeartbeatSender } from './feed/heartbeat';
import { BudgetMeter } from './check/budget';
import type { ChangeOptions } from './store/change';
import { type CheckedRequest, type CheckTarget, KeyCheck } from './check/check';
import { CidrList } from './check/cidr';
import { steadyClock } from './feed/clock';
import { AccessError } from './errors';
import { Follower } from './feed/follower';
import { type Propagation, PROPAGATION_CEILING_MS } from './feed/gateways';
import type { KeyEdit, KeySpec } from './keys/changes';
import { KeyUses } from './check/uses';
import { KeyLimiter } from './check/limiter';
import type { DatabaseLocation } from './store/location';
import type { AccessOutcome, Denied, Identity } from './check/outcome';
import { DEFAULT_OWNER, type OwnerName } from './owner-names';
import { DEFAULT_DEPLOYMENT, type DeploymentRef, type OwnerRef } from './owners';
import type { AccessStore } from './store/store';
import { KeyTable } from './check/table';
import { type CreateThread, openServingStore } from './store/threaded-store';
import { Verifier } from './check/verifier';

/** Structured log. Callers never pass a secret. */
export interface AccessLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

export interface AccessOptions {
  /** The key database. Without one only the fixed keys are accepted. See `resolveServeLocation`. */
  location?: DatabaseLocation;
  /**
   * An open store, used instead of `location`. The caller closes it and calls {@link Access.wake} on each push. The
   * server then is not a deployment itself, so every check names its target.
   */
  store?: AccessStore;
  /** Fixed keys from `--api-key`, 1 to 200 visible ASCII characters each. */
  apiKeys?: readonly string[];
  /** Owner of this server's deployment. Created if missing. Default `user:local`. */
  owner?: OwnerName;
  /** Name of this server's deployment. Created if missing. Default `default`. */
  deployment?: string;
  /** Poll interval of the revision feed. Default 1 s. */
  pollMs?: number;
  /** Every key gets 503 if the feed has not been read for this long. Default 60 s, at most 300 s. */
  maxStalenessMs?: number;
  /**
   * What happens to running requests when their key loses access: with `cut` (the default) `granted.signal` fires
   * within a second, with `finish` they continue.
   */
  onRevoke?: 'cut' | 'finish';
  /** Networks of the proxies whose `X-Forwarded-For` is trusted. Default none: the client is the peer. */
  trustedProxies?: readonly string[];
  /** Program version, written with each heartbeat. */
  version?: string;
  /** Id of this serving process. Default: a new one. May stay the same over restarts if no two processes share it. */
  gatewayId?: string;
  log?: AccessLog;
  /** The remaining options are for tests. */
  now?: () => number;
  monotonicMs?: () => number;
  createThread?: CreateThread;
  verify?: (hash: string, secret: string) => Promise<boolean>;
}

const POLL_MS = 1_000;
const COMPARE_MS = 60_000;
/** Also the maximum age of the budget use that other processes have written. */
const USE_FLUSH_MS = 5_000;
const DEFAULT_MAX_STALENESS_MS = 60_000;
const FIXED_KEY = /^[\x21-\x7e]{1,200}$/;

/**
 * Access control of a serving process: checks each request and changes keys. A change made here applies in this process
 * before its promise resolves.
 */
export class Access {
  /** The deployment of this server: the default target of {@link check}. */
  readonly target: CheckTarget;
  readonly #check: KeyCheck;
  readonly #table: KeyTable;
  readonly #limiter: KeyLimiter;
  readonly #uses: KeyUses;
  readonly #budgets: BudgetMeter;
  readonly #heartbeat: HeartbeatSender | undefined;
  readonly #now: () => number;
  readonly #store: AccessStore | undefined;
  readonly #ownsStore: boolean;
  readonly #follower: Follower | undefined;
  readonly #log: AccessLog | undefined;
  readonly #flushing: NodeJS.Timeout | undefined;

  private constructor(target: CheckTarget, store: AccessStore | undefined, options: AccessOptions) {
    const { monotonicMs = () => performance.now(), log, verify } = options;
    const now = steadyClock(options.now ?? Date.now, monotonicMs);
    this.target = target;
    this.#store = store;
    this.#ownsStore = options.store === undefined;
    this.#log = log;
    this.#table = new KeyTable();
    this.#limiter = new KeyLimiter(monotonicMs);
    this.#now = now;
    this.#uses = new KeyUses();
    this.#budgets = new BudgetMeter((keyId, sinceDay) => this.#uses.unwrittenTokens(keyId, sinceDay));
    this.#heartbeat = store === undefined ? undefined : new HeartbeatSender(store, options, monotonicMs);
    const maxStalenessMs = Math.min(options.maxStalenessMs ?? DEFAULT_MAX_STALENESS_MS, PROPAGATION_CEILING_MS);
    const follower = (this.#follower =
      store === undefined ? undefined : this.#createFollower(store, options, monotonicMs));
    const catchUp = follower === undefined ? undefined : new CatchUp(() => follower.sync(), monotonicMs);
    this.#check = new KeyCheck({
      table: this.#table,
      verifier: new Verifier({ maxRunning: 2, maxWaiting: 32, maxFailuresPerMinute: 20, monotonicMs, verify }),
      limiter: this.#limiter,
      uses: this.#uses,
      budgets: this.#budgets,
      trustedProxies:
        options.trustedProxies === undefined ? undefined : CidrList.parse('--trusted-proxy', options.trustedProxies),
      isCutting: options.onRevoke !== 'finish',
      now,
      isFresh: () => follower === undefined || follower.staleMs <= maxStalenessMs,
      catchUp: () => catchUp?.wait(),
    });
    for (const key of options.apiKeys ?? []) this.#check.addFixed(checkFixedKey(key), target.ownerId);
    if (store !== undefined) this.#flushing = setInterval(() => void this.#flush(), USE_FLUSH_MS).unref();
  }

  /** @throws AccessError if the database cannot be opened or a fixed key is invalid. */
  static async open(options: AccessOptions): Promise<Access> {
    const { location, owner = DEFAULT_OWNER, deployment = DEFAULT_DEPLOYMENT, createThread } = options;
    options.apiKeys?.forEach(checkFixedKey);
    if (options.store !== undefined) return Access.#openOver(options.store, options);
    if (location === undefined)
      return new Access({ id: deployment, ownerId: `${owner.type}:${owner.name}` }, undefined, options);
    let onPush = () => {};
    const store = await openServingStore(location, () => onPush(), createThread);
    try {
      const access = new Access(await store.openDeployment(owner, deployment), store, options);
      onPush = () => access.wake();
      await access.#follower?.start();
      return access;
    } catch (error) {
      await store.close().catch(() => {});
      throw error;
    }
  }

  static async #openOver(store: AccessStore, options: AccessOptions): Promise<Access> {
    const access = new Access({ id: '', ownerId: '' }, store, options);
    try {
      await access.#follower?.start();
      return access;
    } catch (error) {
      await access.close();
      throw error;
    }
  }

  /** Reads the feed now, because another process may have changed something. */
  wake(): void {
    this.#follower?.wake();
  }

  /**
   * Checks a request by its headers. Returns the outcome directly for a key this process has verified before, and a
   * promise for others. The promise does not reject. Call `done` on a grant when the request has ended.
   */
  check(request: CheckedRequest, target: CheckTarget = this.target): AccessOutcome | Promise<AccessOutcome> {
    return this.#check.check(request, target);
  }

  /** Verifies the key of a request before it is known which deployment the request wants. Does not reject. */
  identify(request: CheckedRequest): Identity | Denied | Promise<Identity | Denied> {
    return this.#check.identify(request);
  }

  /** Checks a key by its id, for work of this server that continues without its client. See {@link KeyCheck.resume}. */
  resume(keyId: string, address: string): AccessOutcome {
    return this.#check.resume(keyId, address, this.target);
  }

  /** Finds a key by its id, for requests that this process sends for its owner. See {@link KeyCheck.identifyById}. */
  identifyById(keyId: string, address: string): Identity | Denied {
    return this.#check.identifyById(keyId, address);
  }

  /** Values for `/metrics` and the console. */
  stats(): { numKeys: number; appliedRev: number; staleMs: number } {
    return {
      numKeys: this.#table.size,
      appliedRev: this.#follower?.appliedRev ?? 0,
      staleMs: this.#follower?.staleMs ?? 0,
    };
  }

  /** For reads, and for changes that need not apply here at once. Change keys with the methods below. */
  get store(): AccessStore {
    if (this.#store === undefined)
      throw new AccessError('database_error', 'this server has only fixed keys and no key database');
    return this.#store;
  }

  /** Resolves once every change committed before the call, by any process, applies here. */
  async sync(): Promise<void> {
    await this.#follower?.sync();
  }

  /** Returns how many serving processes, including this one, have applied revision `rev`. */
  async propagation(rev: number): Promise<Propagation> {
    await this.#heartbeat?.send(this.#follower?.appliedRev ?? 0);
    return this.store.readPropagation(rev);
  }

  async createKey(spec: KeySpec, options?: ChangeOptions): Promise<NewKey> {
    return this.#remember(await this.store.createKey(spec, options));
  }

  async rotateKey(reference: string, graceMs: number, options?: ChangeOptions): Promise<NewKey> {
    return this.#remember(await this.store.rotateKey(reference, graceMs, options));
  }

  finishRotation(reference: string, options?: ChangeOptions): Promise<ApiKey> {
    return this.#applied(this.store.finishRotation(reference, options));
  }

  editKey(reference: string, edit: KeyEdit, options?: ChangeOptions): Promise<ApiKey> {
    return this.#applied(this.store.editKey(reference, edit, options));
  }

  setKeyEnabled(reference: string, isEnabled: boolean, options?: ChangeOptions): Promise<ApiKey> {
    return this.#applied(this.store.setKeyEnabled(reference, isEnabled, options));
  }

  deleteKey(reference: string, options?: ChangeOptions): Promise<ApiKey> {
    return this.#applied(this.store.deleteKey(reference, options));
  }

  deleteOwner(owner: OwnerRef, options?: ChangeOptions): Promise<void> {
    return this.#applied(this.store.deleteOwner(owner, options));
  }

  openDeployment(owner: OwnerName, name: string, options?: ChangeOptions): Promise<DeploymentRef> {
    return this.#applied(this.store.openDeployment(owner, name, options));
  }

  setAccessControl(deploymentId: string, isOn: boolean, options?: ChangeOptions): Promise<DeploymentRef> {
    return this.#applied(this.store.setAccessControl(deploymentId, isOn, options));
  }

  deleteDeployment(deploymentId: string, options?: ChangeOptions): Promise<void> {
    return this.#applied(this.store.deleteDeployment(deploymentId, options));
  }

  /** Flushes recorded key uses, and closes the database unless the caller passed the store. */
  async close(): Promise<void> {
    clearInterval(this.#flushing);
    await this.#follower?.close();
    await this.#flush();
    await this.#heartbeat?.close();
    if (this.#ownsStore) await this.#store?.close();
  }

  /** Applies a new secret here. This process then needs no argon2 run to verify it. */
  async #remember(newKey: NewKey): Promise<NewKey> {
    await this.sync();
    this.#check.rememberSecret(newKey.key.publicId, newKey.secretVersion, newKey.secret);
    return newKey;
  }

  async #applied<T>(changing: Promise<T>): Promise<T> {
    const result = await changing;
    await this.sync();
    return result;
  }

  async #flush(): Promise<void> {
    this.#limiter.sweep();
    this.#budgets.sweep(this.#now());
    try {
      await this.#uses.flush(async (uses) => {
        const budgetUses = (await this.#store?.recordUses(uses)) ?? [];
        budgetUses.forEach((use) => this.#budgets.update(use));
      });
    } catch (error) {
      this.#log?.warn(
        { numKeys: this.stats().numKeys, reason: (error as Error).message },
        'cannot save key usage, retrying',
      );
    }
  }

  #createFollower(store: AccessStore, { pollMs = POLL_MS }: AccessOptions, monotonicMs: () => number): Follower {
    let isFailing = false;
    return new Follower(store, this.#table, {
      pollMs,
      compareMs: COMPARE_MS,
      monotonicMs,
      onApplied: () => {
        this.#check.recheck();
        void this.#heartbeat?.send(this.#follower?.appliedRev ?? 0);
      },
      onBudgetUse: (use) => this.#budgets.update(use),
      onRead: () => {
        if (isFailing) this.#log?.info({}, 'the key database is reachable again');
        isFailing = false;
      },
      onError: (error) => {
        // Log once per outage, not at every poll.
        if (!isFailing)
          this.#log?.warn(
            { reason: (error as Error).message },
            'cannot read the key database; using the keys that were read last',
          );
        isFailing = true;
        // Keys expire even while the database is unreachable.
        this.#check.recheck();
      },
      onMismatch: () => this.#log?.warn({}, 'the key database was changed without a revision; reloaded all keys'),
    });
  }
}

function checkFixedKey(key: string): string {
  // NOTE: the message must not contain the key.
  if (!FIXED_KEY.test(key))
    throw new AccessError('invalid_argument', '--api-key: expected 1 to 200 visible ASCII characters without spaces');
  return key;
}
