import type { Driver, ReplicaEvent } from '../driver/driver';
import type { GatewayControl, Target, Targets } from '../gateway/targets';
import { ActivityMeter } from './activity';
import { type Clock, SYSTEM_CLOCK } from './clock';
import type { ReconciledDeployment } from './deployment-control';
import type { HomeSnapshots } from '../deployments/home-snapshots';
import type { PrefixCaches } from '../deployments/prefix-caches';
import { KeyedQueue } from './keyed-queue';
import type { LeaseTerm } from './lease';
import { monitoredSpec, replicaSpec } from './replica-spec';
import { ReplicaRunner } from './replica-runner';
import type { ControlStore } from '../store/store-deployments';
import { ServiceError } from '../store/errors';
import { stopStrays } from './strays';
import { containerSlug, containerTargetOf, targetOf } from '../deployments/target';
import {
  type ControlPolicy,
  DEFAULT_CONTROL_POLICY,
  type DeploymentRecord,
  findVersion,
  type Observation,
} from './records';

export interface ControllerLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

/** The logs of replicas. */
export interface ReplicaLogs {
  /** Returns the newest lines of a log, oldest first. */
  last(logId: string, limit: number): Promise<readonly { text: string }[]>;
  /** Deletes the log of a version or container. */
  delete(logId: string): Promise<void>;
}

export interface ControllerOptions {
  store: ControlStore;
  /** Epoch of the lease of this service. */
  epoch: number;
  /** Called when another service has taken the lease. The controller changes nothing from then on. */
  onLeaseLost?: () => void;
  driver: Driver;
  targets: Targets;
  snapshots: HomeSnapshots;
  prefixCaches: PrefixCaches;
  dataRoots: readonly string[];
  /** Default false. */
  allowsUnisolated?: boolean;
  logs: ReplicaLogs;
  log: ControllerLog;
  policy?: ControlPolicy;
  clock?: Clock;
}

const LAST_LINES = 200;
/** Delay after a database error. */
const RETRY_MS = 1_000;
/** Longest timer. `setTimeout` overflows after 24.8 days, and an extra step changes nothing. */
const MAX_TIMER_MS = 3_600_000;
/** Delay when the next step is already overdue. */
const OVERDUE_MS = 1_000;

type Item = Observation | { type: 'wake' };

/** The change is saved, but the step that applies it is not. The controller repeats the step until it succeeds. */
export class StepError extends Error {
  override readonly name = 'StepError';
}

/**
 * The control loop: compares the desired with the observed state and makes the driver follow. Each step is one
 * transaction that saves the observations and the decisions. The driver acts only after that, so another process can
 * continue from the rows if this one crashes.
 */
export class Controller implements GatewayControl {
  readonly #options: ControllerOptions;
  readonly #policy: ControlPolicy;
  readonly #clock: Clock;
  readonly #queue: KeyedQueue<Item>;
  readonly #runner: ReplicaRunner;
  readonly #meters = new Map<string, ActivityMeter>();
  readonly #latest = new Map<string, ReconciledDeployment>();
  readonly #timers = new Map<string, { at: number; cancel: () => void }>();
  /** Deployments and containers that wait for capacity, longest wait first. */
  readonly #waiting = new Set<string>();
  readonly #copyingHomes = new Set<string>();
  readonly #savingLines = new Set<string>();
  readonly #listeners = new Set<(id: string) => void>();
  /** What failed steps could not save, with the timer of the next attempt. */
  readonly #unsaved = new Map<string, { items: Item[]; cancel: () => void }>();
  /** Deployments that require keys until a step has read the setting. */
  readonly #requiringKeys = new Map<string, object>();
  readonly #term: LeaseTerm;
  #stopObserving: (() => void) | undefined;
  #isClosed = false;

  constructor(options: ControllerOptions) {
    this.#options = options;
    this.#policy = options.policy ?? DEFAULT_CONTROL_POLICY;
    this.#clock = options.clock ?? SYSTEM_CLOCK;
    this.#term = { epoch: options.epoch, startedAt: this.#clock.now() };
    this.#queue = new KeyedQueue((id, items) => this.#step(id, items));
    this.#runner = new ReplicaRunner({
      driver: options.driver,
      clock: this.#clock,
      allowsUnisolated: options.allowsUnisolated ?? false,
      buildSpec: async (replicaId) => {
        const launch = await options.store.readLaunch(replicaId);
        return launch === undefined ? undefined : replicaSpec(launch, options, options.driver.isolation);
      },
      readMonitored: async (replicaId) => {
        const launch = await options.store.readLaunch(replicaId);
        return launch === undefined ? undefined : monitoredSpec(launch);
      },
      countOpenRequests: (ownerId, replicaId) => this.#meters.get(ownerId)?.openOf(replicaId) ?? 0,
      report: (ownerId, observation) => void this.#queue.add(ownerId, observation),
      onError: (error, replicaId) => this.#onDriverError(error, replicaId),
    });
  }

  /** Adopts running replicas and reconciles everything once. */
  async start(): Promise<void> {
    const { store, driver } = this.#options;
    this.#stopObserving = driver.observe((event) => this.#observe(event));
    await stopStrays(driver, await store.listOwnReplicaIds(), (error, id) => this.#onDriverError(error, id));
    const deploymentIds = await store.listDeploymentIds();
    await this.#removeCaches((caches) => caches.keepOnly(deploymentIds));
    const ids = [...deploymentIds, ...(await store.listBusyContainerIds())];
    await Promise.all(ids.map((id) => this.#queue.add(id)));
  }

  /**
   * Reconciles a deployment or container. Call after a user's change. Resolves when the step is saved and the gateway
   * has the new routing entry.
   * @throws StepError if the step cannot be saved now. It is repeated.
   */
  async reconcile(id: string): Promise<void> {
    await this.#queue.add(id);
    if (this.#isClosed || this.#unsaved.has(id)) throw new StepError('the control step is not saved yet');
  }

  /**
   * Makes the gateway require keys at once, whether or not the database responds. The next step that succeeds applies
   * the saved setting.
   */
  requireKeys(deploymentId: string): void {
    this.#requiringKeys.set(deploymentId, {});
    const target = this.#options.targets.findById(deploymentId);
    if (target !== undefined) this.#route(target.slug, target);
  }

  /**
   * Reconciles everything that waits for capacity. Call after a change outside the controller, such as a larger quota.
   */
  async capacityFreed(): Promise<void> {
    await Promise.all([...this.#waiting].map((id) => this.#queue.add(id)));
  }

  /** Deletes the home copy and the log of a deleted version or container. Logs what it cannot delete. */
  async deleteFiles(id: string): Promise<void> {
    const { snapshots, logs, log } = this.#options;
    try {
      await snapshots.remove(id);
      await logs.delete(id);
    } catch (error) {
      log.warn({ id, reason: (error as Error).message }, 'cannot delete the files of a version or container');
    }
  }

  /** Logs what it cannot remove. The next start of the service tries again. */
  async #removeCaches(remove: (caches: PrefixCaches) => Promise<void>): Promise<void> {
    const { prefixCaches, log } = this.#options;
    await remove(prefixCaches).catch((error: Error) =>
      log.warn({ reason: error.message }, 'cannot remove a prefix cache from the disk'),
    );
  }

  wake(deploymentId: string): void {
    const deployment = this.#latest.get(deploymentId)?.deployment;
    // Avoids a transaction for each request while the deployment is already waking.
    if (deployment !== undefined && findVersion(deployment, deployment.activeId)?.status.state === 'idle')
      void this.#queue.add(deploymentId, { type: 'wake' });
  }

  onOpenRequests(deploymentId: string, replicaId: string, numOpen: number): void {
    const nowMs = this.#clock.now();
    const meter = this.#meter(deploymentId);
    meter.count(replicaId, numOpen, nowMs, this.#policy.scaleDownAfterMs);
    if (numOpen === 0) this.#runner.idle(replicaId);
    const deployment = this.#latest.get(deploymentId)?.deployment;
    if (deployment === undefined) return;
    if (meter.numOpen === 0 && deployment.idleTimeoutMs !== null)
      this.#schedule(deploymentId, nowMs + deployment.idleTimeoutMs);
    else if (
      deployment.desiredReplicas < deployment.maxReplicas &&
      meter.numOpen > deployment.desiredReplicas * this.#policy.openPerReplica
    )
      this.#schedule(deploymentId, nowMs + this.#policy.scaleUpAfterMs);
  }

  /** Calls `listener` with the id of each changed deployment or container. Returns a function that removes it. */
  onChange(listener: (id: string) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Resolves when no step runs or waits. */
  settled(): Promise<void> {
    return this.#queue.idle();
  }

  /**
   * Replicas keep running and the next process adopts them. With `stopsReplicas` they stop, and it starts them again.
   * The caller detaches the driver after that.
   */
  async close({ stopsReplicas = false } = {}): Promise<void> {
    this.#isClosed = true;
    this.#stopObserving?.();
    for (const { cancel } of [...this.#timers.values(), ...this.#unsaved.values()]) cancel();
    this.#timers.clear();
    await this.#queue.idle();
    if (stopsReplicas) await this.#runner.stopAll();
    this.#runner.close();
  }

  #onDriverError(error: unknown, replicaId: string): void {
    this.#options.log.warn({ replicaId, reason: (error as Error).message }, 'driver error');
  }

  #observe(event: ReplicaEvent): void {
    const ownerId = this.#runner.ownerOf(event.replicaId);
    if (ownerId !== undefined) void this.#queue.add(ownerId, event);
  }

  async #step(id: string, items: Item[]): Promise<void> {
    if (this.#isClosed) return;
    const all = this.#withUnsaved(id, items);
    const requirement = this.#requiringKeys.get(id);
    const onSaved = (): void => {
      // A switch during this step stays in force until the next one.
      if (this.#requiringKeys.get(id) === requirement) this.#requiringKeys.delete(id);
    };
    try {
      if (id.startsWith('con_')) await this.#stepContainer(id, all);
      else await this.#stepDeployment(id, all, onSaved);
    } catch (error) {
      this.#retry(id, all, error);
    }
  }

  /** Returns what the last step could not save, and then `items`. A late retry would apply it after newer events. */
  #withUnsaved(id: string, items: Item[]): Item[] {
    const unsaved = this.#unsaved.get(id);
    if (unsaved === undefined) return items;
    unsaved.cancel();
    this.#unsaved.delete(id);
    return [...unsaved.items, ...items];
  }

  async #stepDeployment(id: string, items: Item[], onSaved: () => void): Promise<void> {
    const { store } = this.#options;
    const activity = this.#meter(id).read(this.#clock.now(), this.#policy);
    const observations = items.filter((item) => item.type !== 'wake');
    if (items.length > observations.length) await store.wakeDeployment(this.#term, id, activity, this.#policy);
    const result = await store.reconcileDeployment(this.#term, id, observations, activity, this.#policy);
    onSaved();
    if (result === undefined) this.#drop(id);
    else await this.#apply(id, result);
  }

  async #apply(id: string, result: ReconciledDeployment): Promise<void> {
    const { deployment, hasFreedCapacity } = result;
    const before = this.#latest.get(id);
    this.#latest.set(id, result);
    this.#route(deployment.slug, targetOf(result));
    this.#runner.sync(
      id,
      deployment.versions.flatMap(({ replicas, graceMs }) => replicas.map((replica) => ({ replica, graceMs }))),
    );
    for (const version of deployment.versions) if (version.homeState === 'pending') this.#copyHome(id, version.id);
    if (!keepsCache(deployment) && (before === undefined || keepsCache(before.deployment)))
      void this.#removeCaches((caches) => caches.remove(id));
    for (const versionId of result.withoutLastLines) this.#saveLastLines(id, versionId);
    this.#scheduleNext(id, result.nextStepAt);
    this.#afterStep(id, {
      isWaiting: result.isWaiting,
      hasChanged: before === undefined || result.hasChanged,
      hasFreedCapacity,
    });
    if (deployment.desired === 'deleted' && deployment.versions.every(({ replicas }) => replicas.length === 0))
      await this.#remove(id);
  }

  #route(slug: string, target: Target | undefined): void {
    const { targets } = this.#options;
    if (target === undefined) return targets.delete(slug);
    const required = this.#requiringKeys.has(target.deploymentId) ? { ...target, accessControl: true } : target;
    if (JSON.stringify(required) !== JSON.stringify(targets.find(slug))) targets.set(required);
  }

  async #stepContainer(id: string, items: Item[]): Promise<void> {
    const observations = items.filter((item) => item.type !== 'wake');
    const result = await this.#options.store.reconcileContainer(this.#term, id, observations, this.#policy);
    const target = result === undefined ? undefined : containerTargetOf(result);
    this.#route(containerSlug(id), target);
    if (target === undefined) this.#meters.delete(id);
    this.#runner.sync(
      id,
      (result?.container.replicas ?? []).map((replica) => ({ replica, graceMs: 0 })),
    );
    this.#scheduleNext(id, result?.nextStepAt ?? null);
    this.#afterStep(id, {
      isWaiting: result?.container.state === 'queued',
      hasChanged: result?.hasChanged ?? true,
      hasFreedCapacity: result?.hasFreedCapacity ?? true,
    });
  }

  /** Notifies listeners, and reconciles whatever waits for capacity if this step freed some. */
  #afterStep(
    id: string,
    { isWaiting, hasChanged, hasFreedCapacity }: { isWaiting: boolean; hasChanged: boolean; hasFreedCapacity: boolean },
  ): void {
    if (isWaiting) this.#waiting.add(id);
    else this.#waiting.delete(id);
    if (hasChanged) for (const listener of this.#listeners) listener(id);
    if (hasFreedCapacity) for (const other of this.#waiting) if (other !== id) void this.#queue.add(other);
  }

  #retry(id: string, items: readonly Item[], error: unknown): void {
    if (this.#isClosed) return;
    if (error instanceof ServiceError && error.code === 'lease_lost') return this.#loseLease();
    this.#options.log.warn(
      { id, reason: (error as Error).message },
      `cannot save a reconcile step, retrying in ${RETRY_MS / 1000} s`,
    );
    const cancel = this.#clock.after(RETRY_MS, () => void this.#queue.add(id));
    this.#unsaved.set(id, { items: withoutRepeats(items), cancel });
  }

  /** Another service decides now. Whatever this one would do is based on old records. */
  #loseLease(): void {
    this.#isClosed = true;
    this.#options.onLeaseLost?.();
  }

  #copyHome(id: string, versionId: string): void {
    if (this.#copyingHomes.has(versionId)) return;
    this.#copyingHomes.add(versionId);
    void this.#takeSnapshot(versionId)
      .then(
        () => ({ type: 'homeReady' as const, versionId }),
        (error: unknown) => ({
          type: 'homeFailed' as const,
          versionId,
          message: `cannot copy the home: ${(error as Error).message}`,
        }),
      )
      .then((observation) => {
        this.#copyingHomes.delete(versionId);
        if (!this.#isClosed) void this.#queue.add(id, observation);
      });
  }

  async #takeSnapshot(versionId: string): Promise<void> {
    const { store, snapshots, dataRoots } = this.#options;
    const source = await store.readHomeSource(versionId);
    if (source !== undefined) await snapshots.takeInside(versionId, source, dataRoots);
  }

  /** Saves the end of a failed version's log with the version, because the log expires. */
  #saveLastLines(id: string, versionId: string): void {
    if (this.#savingLines.has(versionId)) return;
    this.#savingLines.add(versionId);
    const { logs, store, epoch, log } = this.#options;
    void logs
      .last(versionId, LAST_LINES)
      .catch(() => [])
      .then((lines) =>
        store.saveLastLines(
          epoch,
          versionId,
          lines.map(({ text }) => text),
        ),
      )
      .catch((error: unknown) =>
        log.warn({ versionId, reason: (error as Error).message }, 'cannot save the last log lines of a version'),
      )
      .finally(() => {
        this.#savingLines.delete(versionId);
        for (const listener of this.#listeners) listener(id);
      });
  }

  async #remove(id: string): Promise<void> {
    const { store, epoch } = this.#options;
    try {
      const versionIds = await store.removeDeployment(epoch, id);
      if (versionIds === undefined) return;
      this.#drop(id);
      await Promise.all(versionIds.map((versionId) => this.deleteFiles(versionId)));
      await this.#removeCaches((caches) => caches.remove(id));
    } catch (error) {
      this.#retry(id, [], error);
    }
  }

  #drop(id: string): void {
    const result = this.#latest.get(id);
    if (result !== undefined) this.#options.targets.delete(result.deployment.slug);
    this.#runner.sync(id, []);
    this.#timers.get(id)?.cancel();
    for (const map of [this.#latest, this.#meters, this.#timers, this.#requiringKeys]) map.delete(id);
    this.#afterStep(id, { isWaiting: false, hasChanged: true, hasFreedCapacity: false });
  }

  #meter(id: string): ActivityMeter {
    let meter = this.#meters.get(id);
    if (meter === undefined) this.#meters.set(id, (meter = new ActivityMeter(this.#clock.now())));
    return meter;
  }

  /** Replaces the scheduled step after one that was saved. Null: none is needed. */
  #scheduleNext(id: string, at: number | null): void {
    this.#timers.get(id)?.cancel();
    this.#timers.delete(id);
    if (at !== null) this.#schedule(id, at);
  }

  /** Schedules a step at `at`, unless an earlier one is scheduled. */
  #schedule(id: string, at: number): void {
    if (this.#isClosed) return;
    const timer = this.#timers.get(id);
    if (timer !== undefined && timer.at <= at) return;
    timer?.cancel();
    const waitMs = at - this.#clock.now();
    const cancel = this.#clock.after(waitMs > 0 ? Math.min(MAX_TIMER_MS, waitMs) : OVERDUE_MS, () => {
      this.#timers.delete(id);
      void this.#queue.add(id);
    });
    this.#timers.set(id, { at, cancel });
  }
}

/** Whether a version that serves, will serve or still runs keeps its prefix cache on the disk. */
function keepsCache({ versions, activeId, targetId }: DeploymentRecord): boolean {
  return versions.some(
    ({ id, prefixCacheMb, replicas }) =>
      prefixCacheMb > 0 && (id === activeId || id === targetId || replicas.length > 0),
  );
}

/** Keeps the last item of each kind per replica or version, so that a long outage does not fill the memory. */
function withoutRepeats(items: readonly Item[]): Item[] {
  const last = new Map(items.map((item) => [keyOf(item), item]));
  return items.filter((item) => last.get(keyOf(item)) === item);
}

function keyOf(item: Item): string {
  if ('replicaId' in item) return `${item.type} ${item.replicaId}`;
  return 'versionId' in item ? `${item.type} ${item.versionId}` : item.type;
}
