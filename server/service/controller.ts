import type { Driver, ReplicaEvent } from '../driver/driver';
import type { GatewayControl, Target, Targets } from '../gateway/targets';
import { ActivityMeter } from './activity';
import { type Clock, SYSTEM_CLOCK } from './clock';
import type { ContainerView } from './container-control';
import type { DeploymentView } from './control';
import type { HomeSnapshots } from './home-snapshots';
import { Lanes } from './lanes';
import { replicaSpec } from './replica-spec';
import { ReplicaRunner } from './replica-runner';
import type { ControlStore } from './store-deployments';
import { containerSlug, containerTargetOf, targetOf } from './target';
import { type ControlPolicy, DEFAULT_CONTROL_POLICY, findVersion, type Observation } from './work';

export interface ControllerLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

/** Where the output of replicas is kept. */
export interface ReplicaLogs {
  /** The newest lines of a log, oldest first. */
  last(logId: string, limit: number): Promise<readonly { text: string }[]>;
  /** The version or container is no more. */
  delete(logId: string): Promise<void>;
}

export interface ControllerOptions {
  store: ControlStore;
  driver: Driver;
  targets: Targets;
  snapshots: HomeSnapshots;
  dataRoots: readonly string[];
  /** Default false. */
  allowsUnisolated?: boolean;
  logs: ReplicaLogs;
  log: ControllerLog;
  policy?: ControlPolicy;
  clock?: Clock;
}

const LAST_LINES = 200;
/** After the database did not answer. */
const RETRY_MS = 1_000;
/** Timers hold no longer times; a look too many changes nothing. */
const MAX_TIMER_MS = 3_600_000;
/** Where a look at the time that was due changed nothing. */
const OVERDUE_MS = 1_000;

type Item = Observation | { type: 'wake' };

/**
 * Makes what runs follow what is wanted. All it knows is in the database: each step is one transaction that writes what happened and what follows, and only then the driver is told. A process that ends at any moment
 * leaves rows from which the next one goes on.
 */
export class Controller implements GatewayControl {
  readonly #options: ControllerOptions;
  readonly #policy: ControlPolicy;
  readonly #clock: Clock;
  readonly #lanes: Lanes<Item>;
  readonly #runner: ReplicaRunner;
  readonly #meters = new Map<string, ActivityMeter>();
  readonly #views = new Map<string, DeploymentView>();
  readonly #timers = new Map<string, { at: number; cancel: () => void }>();
  /** Deployments and containers that want room, the longest first. */
  readonly #waiting = new Set<string>();
  readonly #copying = new Set<string>();
  readonly #saving = new Set<string>();
  readonly #listeners = new Set<(id: string) => void>();
  #stopObserving: (() => void) | undefined;
  #isClosed = false;

  constructor(options: ControllerOptions) {
    this.#options = options;
    this.#policy = options.policy ?? DEFAULT_CONTROL_POLICY;
    this.#clock = options.clock ?? SYSTEM_CLOCK;
    this.#lanes = new Lanes((id, items) =>
      id.startsWith('con_') ? this.#stepContainer(id, items) : this.#stepDeployment(id, items),
    );
    this.#runner = new ReplicaRunner({
      driver: options.driver,
      clock: this.#clock,
      allowsUnisolated: options.allowsUnisolated ?? false,
      specOf: async (replicaId) => {
        const launch = await options.store.readLaunch(replicaId);
        return launch === undefined ? undefined : replicaSpec(launch, options, options.driver.isolation);
      },
      openOf: (ownerId, replicaId) => this.#meters.get(ownerId)?.openOf(replicaId) ?? 0,
      tell: (ownerId, observation) => void this.#lanes.add(ownerId, observation),
      onError: (error, replicaId) =>
        options.log.warn({ replicaId, reason: (error as Error).message }, 'the driver failed'),
    });
  }

  /** Takes over what runs, and goes on with what was under way. */
  async start(): Promise<void> {
    const { store, driver } = this.#options;
    this.#stopObserving = driver.observe((event) => this.#observe(event));
    const ids = [...(await store.listDeploymentIds()), ...(await store.listBusyContainerIds())];
    await Promise.all(ids.map((id) => this.changed(id)));
  }

  /** Somebody changed a deployment or a container: what follows is decided, and the gateway knows of it, when this resolves. */
  changed(id: string): Promise<void> {
    return this.#lanes.add(id);
  }

  /** There is more room by nobody's step, such as by a greater quota: whoever waits looks again. */
  async roomMade(): Promise<void> {
    await Promise.all([...this.#waiting].map((id) => this.changed(id)));
  }

  /** A version or a container was deleted: its files may go. */
  async forget(id: string): Promise<void> {
    await this.#options.snapshots.remove(id);
    await this.#options.logs.delete(id);
  }

  wake(deploymentId: string): void {
    const work = this.#views.get(deploymentId)?.work;
    // One that is on its way up is asked for already.
    if (work !== undefined && findVersion(work, work.activeId)?.life.state === 'idle')
      void this.#lanes.add(deploymentId, { type: 'wake' });
  }

  onOpenRequests(deploymentId: string, replicaId: string, numOpen: number): void {
    const nowMs = this.#clock.now();
    const meter = this.#meter(deploymentId);
    meter.count(replicaId, numOpen, nowMs, this.#policy.scaleDownAfterMs);
    if (numOpen === 0) this.#runner.idle(replicaId);
    const work = this.#views.get(deploymentId)?.work;
    if (work === undefined) return;
    if (meter.numOpen === 0 && work.idleTimeoutMs !== null) this.#schedule(deploymentId, nowMs + work.idleTimeoutMs);
    else if (work.wanted < work.max && meter.numOpen > work.wanted * this.#policy.openPerReplica)
      this.#schedule(deploymentId, nowMs + this.#policy.scaleUpAfterMs);
  }

  /** Tells of each deployment and container of which something changed; returns what ends it. */
  onChange(listener: (id: string) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** When everything that happened so far has been dealt with. */
  settled(): Promise<void> {
    return this.#lanes.idle();
  }

  /** Replicas run on, for the next process to find; or end now, and the next process starts them again. */
  async close({ stopsReplicas = false } = {}): Promise<void> {
    this.#isClosed = true;
    this.#stopObserving?.();
    for (const { cancel } of this.#timers.values()) cancel();
    this.#timers.clear();
    await this.#lanes.idle();
    if (stopsReplicas) await this.#runner.stopAll();
    await this.#options.driver.detach();
  }

  #observe(event: ReplicaEvent): void {
    const ownerId = this.#runner.ownerOf(event.replicaId);
    if (ownerId !== undefined) void this.#lanes.add(ownerId, event);
  }

  async #stepDeployment(id: string, items: Item[]): Promise<void> {
    if (this.#isClosed) return;
    const { store } = this.#options;
    const activity = this.#meter(id).read(this.#clock.now(), this.#policy);
    const observations = items.filter((item) => item.type !== 'wake');
    let view: DeploymentView | undefined;
    try {
      if (items.length > observations.length) await store.wakeDeployment(id, activity, this.#policy);
      view = await store.advanceDeployment(id, observations, activity, this.#policy);
    } catch (error) {
      return this.#retry(id, items, error);
    }
    if (view === undefined) this.#drop(id);
    else await this.#apply(id, view, items.some(isRoomMade));
  }

  async #apply(id: string, view: DeploymentView, makesRoom: boolean): Promise<void> {
    const { work } = view;
    const before = this.#views.get(id);
    this.#views.set(id, view);
    this.#route(work.slug, targetOf(view));
    this.#runner.sync(
      id,
      work.versions.flatMap(({ replicas, graceMs }) => replicas.map((replica) => ({ replica, graceMs }))),
    );
    for (const version of work.versions) if (version.homeState === 'pending') this.#copyHome(id, version.id);
    for (const versionId of view.lackLastLines) this.#saveLastLines(id, versionId);
    this.#timers.get(id)?.cancel();
    this.#timers.delete(id);
    if (view.dueAt !== null) this.#schedule(id, view.dueAt);
    this.#afterStep(id, { isWaiting: view.isWaiting, hasChanged: before === undefined || view.hasChanged, makesRoom });
    if (work.desired === 'deleted' && work.versions.every(({ replicas }) => replicas.length === 0))
      await this.#remove(id);
  }

  #route(slug: string, target: Target | undefined): void {
    const { targets } = this.#options;
    if (target === undefined) targets.delete(slug);
    else if (JSON.stringify(target) !== JSON.stringify(targets.find(slug))) targets.set(target);
  }

  async #stepContainer(id: string, items: Item[]): Promise<void> {
    if (this.#isClosed) return;
    let view: ContainerView | undefined;
    try {
      view = await this.#options.store.advanceContainer(
        id,
        items.filter((item) => item.type !== 'wake'),
      );
    } catch (error) {
      return this.#retry(id, items, error);
    }
    const target = view === undefined ? undefined : containerTargetOf(view);
    this.#route(containerSlug(id), target);
    if (target === undefined) this.#meters.delete(id);
    this.#runner.sync(
      id,
      (view?.work.replicas ?? []).map((replica) => ({ replica, graceMs: 0 })),
    );
    this.#afterStep(id, {
      isWaiting: view?.work.state === 'queued',
      hasChanged: view?.hasChanged ?? true,
      makesRoom: items.some(isRoomMade),
    });
  }

  /** Whoever waits for room looks again when somebody else's step has made some. */
  #afterStep(
    id: string,
    { isWaiting, hasChanged, makesRoom }: { isWaiting: boolean; hasChanged: boolean; makesRoom: boolean },
  ): void {
    if (isWaiting) this.#waiting.add(id);
    else this.#waiting.delete(id);
    if (hasChanged) for (const listener of this.#listeners) listener(id);
    if (makesRoom) for (const other of this.#waiting) if (other !== id) void this.#lanes.add(other);
  }

  #retry(id: string, items: Item[], error: unknown): void {
    this.#options.log.warn({ id, reason: (error as Error).message }, 'a step could not be written; it is tried again');
    this.#clock.after(RETRY_MS, () => {
      if (!this.#isClosed) void this.#lanes.add(id, ...items);
    });
  }

  #copyHome(id: string, versionId: string): void {
    if (this.#copying.has(versionId)) return;
    this.#copying.add(versionId);
    void this.#takeSnapshot(versionId)
      .then(
        () => ({ type: 'homeReady' as const, versionId }),
        (error: unknown) => ({
          type: 'homeFailed' as const,
          versionId,
          message: `its home could not be copied: ${(error as Error).message}`,
        }),
      )
      .then((observation) => {
        this.#copying.delete(versionId);
        if (!this.#isClosed) void this.#lanes.add(id, observation);
      });
  }

  async #takeSnapshot(versionId: string): Promise<void> {
    const { store, snapshots, dataRoots } = this.#options;
    const source = await store.readHomeSource(versionId);
    if (source !== undefined) await snapshots.takeInside(versionId, source, dataRoots);
  }

  /** What a failed version said last stays with it, whatever becomes of its log. */
  #saveLastLines(id: string, versionId: string): void {
    if (this.#saving.has(versionId)) return;
    this.#saving.add(versionId);
    const { logs, store, log } = this.#options;
    void logs
      .last(versionId, LAST_LINES)
      .catch(() => [])
      .then((lines) =>
        store.saveLastLines(
          versionId,
          lines.map(({ text }) => text),
        ),
      )
      .catch((error: unknown) =>
        log.warn({ versionId, reason: (error as Error).message }, 'the last lines of a version could not be stored'),
      )
      .finally(() => {
        this.#saving.delete(versionId);
        for (const listener of this.#listeners) listener(id);
      });
  }

  async #remove(id: string): Promise<void> {
    const { store, log } = this.#options;
    try {
      const versionIds = await store.removeDeployment(id);
      if (versionIds === undefined) return;
      this.#drop(id);
      await Promise.all(
        versionIds.map((versionId) =>
          this.forget(versionId).catch((error: unknown) =>
            log.warn({ versionId, reason: (error as Error).message }, 'the files of a version could not be removed'),
          ),
        ),
      );
    } catch (error) {
      this.#retry(id, [], error);
    }
  }

  #drop(id: string): void {
    const view = this.#views.get(id);
    if (view !== undefined) this.#options.targets.delete(view.work.slug);
    this.#runner.sync(id, []);
    this.#timers.get(id)?.cancel();
    for (const map of [this.#views, this.#meters, this.#timers]) map.delete(id);
    this.#afterStep(id, { isWaiting: false, hasChanged: true, makesRoom: false });
  }

  #meter(id: string): ActivityMeter {
    let meter = this.#meters.get(id);
    if (meter === undefined) this.#meters.set(id, (meter = new ActivityMeter(this.#clock.now())));
    return meter;
  }

  /** A look at that time, or earlier. */
  #schedule(id: string, at: number): void {
    if (this.#isClosed) return;
    const timer = this.#timers.get(id);
    if (timer !== undefined && timer.at <= at) return;
    timer?.cancel();
    const waitMs = at - this.#clock.now();
    const cancel = this.#clock.after(waitMs > 0 ? Math.min(MAX_TIMER_MS, waitMs) : OVERDUE_MS, () => {
      this.#timers.delete(id);
      void this.#lanes.add(id);
    });
    this.#timers.set(id, { at, cancel });
  }
}

function isRoomMade({ type }: Item): boolean {
  return type === 'gone';
}
