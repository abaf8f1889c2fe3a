import type { ApiKey, NewKey } from './api-key';
import { Beacon } from './beacon';
import { BudgetMeter } from './budget';
import type { ChangeOptions } from './change';
import { type CheckedRequest, type CheckTarget, KeyCheck } from './check';
import { CidrList } from './cidr';
import { steadyClock } from './clock';
import { AccessError } from './errors';
import { Follower } from './follower';
import { type Propagation, PROPAGATION_CEILING_MS } from './gateways';
import type { KeyEdit, KeySpec } from './key-changes';
import { KeyUses } from './key-uses';
import { KeyLimiter } from './limiter';
import type { DatabaseLocation } from './location';
import type { AccessOutcome } from './outcome';
import { DEFAULT_DEPLOYMENT, DEFAULT_OWNER, type DeploymentRef, type OwnerName, type OwnerRef } from './owners';
import type { AccessStore } from './store';
import { KeyTable } from './table';
import { type CreateThread, openServingStore } from './threaded-store';
import { Verifier } from './verifier';

/** Structured lines; no secret is ever given to it. */
export interface AccessLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

export interface AccessOptions {
  /** Where the keys are; absent: fixed keys alone. See `resolveServeLocation`. */
  location?: DatabaseLocation;
  /** A store that is open already, instead of a location: whoever opened it closes it, and tells {@link Access.poke} of pushes. This server then is no deployment itself: every check names its target. */
  store?: AccessStore;
  /** Fixed keys of `--api-key`: 1 to 200 visible ASCII characters each. */
  apiKeys?: readonly string[];
  /** Whose deployment this server is; default `user:local`. Made in the database where missing, like the deployment. */
  owner?: OwnerName;
  /** What deployment-level keys are bound to; default `default`. */
  deployment?: string;
  /** Between two looks at the revision feed; default 1 s. */
  pollMs?: number;
  /** After this long without a look at the feed no key is accepted (503); default 60 s, never above 300 s. */
  maxStalenessMs?: number;
  /** What becomes of requests that run when their key loses its right: `granted.signal` fires within a second (`cut`, the default), or they `finish`. */
  onRevoke?: 'cut' | 'finish';
  /** Networks of proxies whose `X-Forwarded-For` names the caller; default none: the caller is the peer. */
  trustedProxies?: readonly string[];
  /** Of the program, for those who look at how far a change has come. */
  version?: string;
  /** Of this process among those that serve; by default a new one. The same at every start where no two of them run at once. */
  gatewayId?: string;
  log?: AccessLog;
  /** For tests. */
  now?: () => number;
  monotonicMs?: () => number;
  createThread?: CreateThread;
  verify?: (hash: string, secret: string) => Promise<boolean>;
}

const POLL_MS = 1_000;
const COMPARE_MS = 60_000;
/** Also how old another process's share of a budget may be. */
const USE_FLUSH_MS = 5_000;
const DEFAULT_MAX_STALENESS_MS = 60_000;
const FIXED_KEY = /^[\x21-\x7e]{1,200}$/;

/** Access keys of a serving process: the check for every request, and changes that apply here before they are answered. */
export class Access {
  /** What this server is to the check. */
  readonly target: CheckTarget;
  readonly #check: KeyCheck;
  readonly #table: KeyTable;
  readonly #limiter: KeyLimiter;
  readonly #uses: KeyUses;
  readonly #budgets: BudgetMeter;
  readonly #beacon: Beacon | undefined;
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
    this.#beacon = store === undefined ? undefined : new Beacon(store, options, monotonicMs);
    const maxStalenessMs = Math.min(options.maxStalenessMs ?? DEFAULT_MAX_STALENESS_MS, PROPAGATION_CEILING_MS);
    const follower = (this.#follower =
      store === undefined ? undefined : this.#createFollower(store, options, monotonicMs));
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
    });
    for (const key of options.apiKeys ?? []) this.#check.addFixed(checkFixedKey(key), target.ownerId);
    if (store !== undefined) this.#flushing = setInterval(() => void this.#flush(), USE_FLUSH_MS).unref();
  }

  /** @throws AccessError when the database cannot be opened or a fixed key is no key. */
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
      onPush = () => access.poke();
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

  /** Another process changed something: look at the feed now. */
  poke(): void {
    this.#follower?.poke();
  }

  /**
   * Whether a request may go on, by its headers alone, before anything else of it is looked at. An outcome at once for every key that was
   * seen before; a promise, which never rejects but for a bug, for the first presentation of one. Call `done` of a granted one when the request has ended.
   */
  check(request: CheckedRequest, target: CheckTarget = this.target): AccessOutcome | Promise<AccessOutcome> {
    return this.#check.check(request, target);
  }

  /** What `/metrics` and the console show. */
  stats(): { numKeys: number; appliedRev: number; staleMs: number } {
    return {
      numKeys: this.#table.size,
      appliedRev: this.#follower?.appliedRev ?? 0,
      staleMs: this.#follower?.staleMs ?? 0,
    };
  }

  /** Reads and rare changes that need no push; keys are changed by the methods below. */
  get store(): AccessStore {
    if (this.#store === undefined)
      throw new AccessError('database_error', 'this server has fixed keys alone and no key database');
    return this.#store;
  }

  /** Resolves when every change committed so far, by any process, applies here. */
  async sync(): Promise<void> {
    await this.#follower?.sync();
  }

  /** Which serving processes have applied a revision, this one among them. */
  async propagation(rev: number): Promise<Propagation> {
    await this.#beacon?.tell(this.#follower?.appliedRev ?? 0);
    return this.store.readPropagation(rev);
  }

  async createKey(spec: KeySpec, options?: ChangeOptions): Promise<NewKey> {
    return this.#learn(await this.store.createKey(spec, options));
  }

  async rotateKey(reference: string, graceMs: number, options?: ChangeOptions): Promise<NewKey> {
    return this.#learn(await this.store.rotateKey(reference, graceMs, options));
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

  /** Writes the last uses and closes the database, where it was opened here. */
  async close(): Promise<void> {
    clearInterval(this.#flushing);
    await this.#follower?.close();
    await this.#flush();
    await this.#beacon?.leave();
    if (this.#ownsStore) await this.#store?.close();
  }

  async #learn(made: NewKey): Promise<NewKey> {
    await this.sync();
    this.#check.learn(made.key.publicId, made.secretVersion, made.secret);
    return made;
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
        budgetUses.forEach((use) => this.#budgets.learn(use));
      });
    } catch (error) {
      this.#log?.warn(
        { numKeys: this.stats().numKeys, reason: (error as Error).message },
        'what keys used could not be written; it is tried again',
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
        void this.#beacon?.tell(this.#follower?.appliedRev ?? 0);
      },
      onBudgetUse: (use) => this.#budgets.learn(use),
      onRead: () => {
        if (isFailing) this.#log?.info({}, 'the key database answers again');
        isFailing = false;
      },
      onError: (error) => {
        // Once per outage: the poll goes on every second.
        if (!isFailing)
          this.#log?.warn(
            { reason: (error as Error).message },
            'the key database does not answer; keys are accepted as last read until they are too old',
          );
        isFailing = true;
        // Keys expire without the database too.
        this.#check.recheck();
      },
      onMismatch: () =>
        this.#log?.warn({}, 'the key database was changed past its revision feed; all keys were read again'),
    });
  }
}

function checkFixedKey(key: string): string {
  // NOTE: never echoed.
  if (!FIXED_KEY.test(key))
    throw new AccessError('invalid_argument', '--api-key: expected 1 to 200 visible ASCII characters, no spaces');
  return key;
}
