import path from 'node:path';
import type {
  Driver,
  DriverCapacity,
  DriverHandle,
  ExitCause,
  Isolation,
  ReplicaEvent,
  ReplicaSpec,
} from '../../../server/platform/driver/driver';
import { unlessAborted } from '../../../server/platform/driver/process/unless-aborted';
import { Targets } from '../../../server/platform/gateway/targets';
import type { DatabaseLocation } from '../../../server/access/store/location';
import type { ServiceActor } from '../../../server/platform/accounts/actor';
import type { Clock } from '../../../server/platform/control/clock';
import { Controller } from '../../../server/platform/control/controller';
import { HomeSnapshots } from '../../../server/platform/deployments/home-snapshots';
import { PrefixCaches } from '../../../server/platform/deployments/prefix-caches';
import type { Machine } from '../../../server/platform/deployments/machine';
import { openServiceStore, type ServiceStore } from '../../../server/platform/store/store';
import { type ControlPolicy, DEFAULT_CONTROL_POLICY } from '../../../server/platform/control/records';

export const START = 1_800_000_000_000;
export const SECRET_KEY = new Uint8Array(32).fill(7);

/** A clock that tests advance by hand. */
export class FakeClock implements Clock {
  #nowMs = START;
  #timers: { at: number; run: () => void }[] = [];

  #jumpMs = 0;

  now = (): number => this.#nowMs;

  get numTimers(): number {
    return this.#timers.length;
  }

  /** The time of day. */
  wall = (): number => this.#nowMs + this.#jumpMs;

  /** Sets the time of day forward or back. */
  jump(ms: number): void {
    this.#jumpMs += ms;
  }

  after = (ms: number, run: () => void): (() => void) => {
    const timer = { at: this.#nowMs + ms, run };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  };

  sleep = (ms: number): Promise<void> =>
    new Promise((resolve) => {
      this.after(ms, resolve);
    });

  /** Runs all timers up to `ms` at their time. Waits with `settle` after each one. */
  async advance(ms: number, settle: () => Promise<void>): Promise<void> {
    const end = this.#nowMs + ms;
    for (;;) {
      const next = this.#timers.filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0];
      if (next === undefined) break;
      this.#timers = this.#timers.filter((timer) => timer !== next);
      this.#nowMs = Math.max(this.#nowMs, next.at);
      next.run();
      await settle();
    }
    this.#nowMs = end;
    await settle();
  }
}

export interface FakeProcess {
  spec: ReplicaSpec;
  handle: DriverHandle;
}

/** The processes of a machine. It survives a restart of the service. */
export class FakeWorld {
  readonly running = new Map<string, FakeProcess>();
  readonly started: ReplicaSpec[] = [];
  /** GPUs that two running processes had at once. */
  readonly conflicts: string[] = [];
}

/** A driver whose processes the test controls. */
export class FakeDriver implements Driver {
  readonly name = 'fake';
  readonly isolation: Isolation;
  readonly world: FakeWorld;
  readonly stops: { id: string; graceMs: number }[] = [];
  /** Whether a started process is ready at once. */
  answers: (spec: ReplicaSpec) => boolean = () => true;
  /** Runs before each start. It may reject or delay it. */
  beforeEnsure: (spec: ReplicaSpec) => Promise<void> = () => Promise.resolve();
  /** Runs before a process ends on request. It may delay that. */
  beforeStop: (replicaId: string) => Promise<void> = () => Promise.resolve();
  /** Runs before a running process is found again. It may reject. */
  beforeAdopt: (replicaId: string) => Promise<void> = () => Promise.resolve();
  #listener: ((event: ReplicaEvent) => void) | undefined;
  readonly #capacity: DriverCapacity;

  constructor(world: FakeWorld, { isolation, capacity }: Pick<Machine, 'isolation' | 'capacity'>) {
    this.world = world;
    this.isolation = isolation;
    this.#capacity = capacity;
  }

  capacity = (): Promise<DriverCapacity> => Promise.resolve(this.#capacity);

  async ensure(spec: ReplicaSpec, signal: AbortSignal): Promise<DriverHandle> {
    await unlessAborted(signal, this.beforeEnsure(spec));
    // A process of an earlier service uses the GPUs until it has ended.
    for (const { spec: other } of this.world.running.values())
      if (other.id !== spec.id && other.gpuUuids.some((uuid) => spec.gpuUuids.includes(uuid)))
        this.world.conflicts.push(`${spec.id} got a GPU of ${other.id}`);
    const known = this.world.running.get(spec.id);
    if (known !== undefined) return this.adopt(known.handle.reference, spec).then(() => known.handle);
    const handle: DriverHandle = {
      reference: `pid of ${spec.id}`,
      address: { type: 'tcp', host: '127.0.0.1', port: 1000 + this.world.started.length },
    };
    this.world.running.set(spec.id, { spec, handle });
    this.world.started.push(spec);
    if (this.answers(spec)) this.emit({ type: 'ready', replicaId: spec.id });
    return handle;
  }

  async adopt(reference: string, spec: Pick<ReplicaSpec, 'id'>): Promise<DriverHandle | undefined> {
    await this.beforeAdopt(spec.id);
    const known = this.world.running.get(spec.id);
    if (known?.handle.reference !== reference) return undefined;
    if (this.answers(known.spec)) this.emit({ type: 'ready', replicaId: spec.id });
    return known.handle;
  }

  /** What `list` returns. It may be wrong. */
  listed = (): Promise<string[]> => Promise.resolve([...this.world.running.keys()]);
  list = (): Promise<string[]> => this.listed();

  observe(listener: (event: ReplicaEvent) => void): () => void {
    this.#listener = listener;
    return () => {
      this.#listener = undefined;
    };
  }

  async stop(replicaId: string, graceMs: number): Promise<void> {
    this.stops.push({ id: replicaId, graceMs });
    await this.beforeStop(replicaId);
    this.world.running.delete(replicaId);
  }

  usage = () => Promise.resolve(undefined);
  detach = () => Promise.resolve();

  /** Emits an event after the current call, as a real process does. */
  emit(event: ReplicaEvent): void {
    setImmediate(() => this.#listener?.(event));
  }

  exit(replicaId: string, exitCode: number | null = 1, more: { cause?: ExitCause; refusedFlag?: true } = {}): void {
    this.world.running.delete(replicaId);
    this.emit({
      type: 'exited',
      replicaId,
      exitCode,
      signal: null,
      message: `it ended with exit code ${exitCode}`,
      wasStopped: false,
      ...more,
    });
  }
}

export const GPU = (number: number) => ({ uuid: `GPU-${number}`, type: 'H200', memoryMb: 140_000 });

export function machine(more: Partial<Machine> & { gpus?: number } = {}): Machine {
  const { gpus = 0, ...rest } = more;
  return {
    driver: 'fake',
    isolation: { level: 'L2', reason: 'a test' },
    capacity: { cpuMillis: 16_000, memoryMb: 64_000, gpus: Array.from({ length: gpus }, (_, i) => GPU(i)) },
    dataRoots: [],
    allowsUnisolated: false,
    ...rest,
  };
}

/** When a call of the controller to the store rejects: before it changes anything, or although it has. */
export type StoreFault = 'before' | 'after' | undefined;

export interface Harness {
  store: ServiceStore;
  /** Decides which calls of the controller to the store fail. */
  storeFault: (method: string) => StoreFault;
  /** What the controller logged. */
  warnings: string[];
  controller: Controller;
  driver: FakeDriver;
  targets: Targets;
  clock: FakeClock;
  world: FakeWorld;
  logs: Map<string, string[]>;
  actor: ServiceActor;
  settle: () => Promise<void>;
  advance: (ms: number) => Promise<void>;
  /** Simulates kill -9 and a restart of the service. `faults` are set in the new driver before it starts. */
  killAndRestart: (faults?: Partial<Pick<FakeDriver, 'beforeAdopt' | 'beforeStop' | 'listed'>>) => Promise<void>;
  close: () => Promise<void>;
}

export const ANN = { email: 'ann@example.com', name: 'Ann', password: 'correct horse battery' };
export const STORE_OPTIONS = { secretKey: SECRET_KEY, version: '1.0.0', reserveBytes: 0 };

const annIds = new Map<DatabaseLocation['kind'], string>();

/** Fills a database: its tables, and the account {@link ANN}. */
export async function withAnn(location: DatabaseLocation): Promise<void> {
  const store = await openServiceStore({ location, ...STORE_OPTIONS }, () => START);
  const { userId } = await store.createAccount(ANN);
  annIds.set(location.kind, userId);
  await store.close();
}

/** Fills a database with its tables alone. */
export async function migrated(location: DatabaseLocation): Promise<void> {
  await (await openServiceStore({ location, ...STORE_OPTIONS }, () => START)).close();
}

/** Returns the user id of {@link ANN} in a copy of {@link withAnn}. */
export function annOf({ kind }: DatabaseLocation): string {
  return annIds.get(kind)!;
}

export function actorOf(userId: string, more: Partial<ServiceActor> = {}): ServiceActor {
  return { userId, isAdmin: false, via: 'session', canWrite: true, ip: '192.0.2.1', userAgent: 'test', ...more };
}

export async function openHarness(
  location: DatabaseLocation,
  folder: string,
  of: Machine = machine(),
  policy: ControlPolicy = DEFAULT_CONTROL_POLICY,
  /** Opens another service on the database of this one. */
  beside?: Harness,
): Promise<Harness> {
  const clock = beside?.clock ?? new FakeClock();
  const world = new FakeWorld();
  const logs = new Map<string, string[]>();
  const warnings: string[] = [];
  const userId = beside?.actor.userId ?? annOf(location);
  const node = beside === undefined ? 'gtw_a' : 'gtw_b';
  const store = await openServiceStore({ location, ...STORE_OPTIONS, machine: of, node }, clock.wall, clock.now);
  let numCalls = 0;
  /** Counts the open calls of asynchronous methods, so that `settle` waits for them. */
  const counted = <T extends object>(target: T, methods?: readonly (keyof T)[]): T =>
    new Proxy(target, {
      get(_target, name) {
        const value = target[name as keyof T] as unknown as (...args: unknown[]) => Promise<unknown>;
        if (methods !== undefined && !methods.includes(name as keyof T)) return value.bind(target);
        return async (...args: unknown[]) => {
          numCalls++;
          try {
            const fault = target === (store as object) ? harness.storeFault(name as string) : undefined;
            if (fault === 'before') throw new Error('the database does not respond');
            const result = await value.apply(target, args);
            if (fault === 'after') throw new Error('the response of the database is lost');
            return result;
          } finally {
            numCalls--;
          }
        };
      },
    });
  const countedStore = counted(store);
  const open = async () => {
    const epoch = await store.takeLease(node, await store.readLease());
    if (epoch === undefined) throw new Error('expected a lease that no other service takes');
    const driver = new FakeDriver(world, of);
    const targets = new Targets();
    const controller = new Controller({
      store: countedStore,
      epoch,
      onLeaseLost: () => void warnings.push('lease lost'),
      driver,
      targets,
      clock,
      policy,
      dataRoots: of.dataRoots,
      prefixCaches: new PrefixCaches(path.join(folder, 'prefix-caches')),
      snapshots: counted(new HomeSnapshots(path.join(folder, 'snapshots')), ['takeInside', 'remove']),
      log: { info: () => {}, warn: (_fields, message) => void warnings.push(message) },
      logs: {
        last: (id, limit) => Promise.resolve((logs.get(id) ?? []).slice(-limit).map((text) => ({ text }))),
        delete: (id) => {
          logs.delete(id);
          return Promise.resolve();
        },
      },
    });
    return { driver, targets, controller };
  };
  const settle = async () => {
    for (let calm = 0; calm < 4; calm = numCalls === 0 ? calm + 1 : 0) {
      await new Promise(setImmediate);
      await harness.controller.settled();
    }
  };
  const harness: Harness = {
    store,
    storeFault: () => undefined,
    warnings,
    clock,
    world,
    logs,
    actor: actorOf(userId),
    settle,
    ...(await open()),
    advance: (ms) => clock.advance(ms, settle),
    killAndRestart: async (faults = {}) => {
      const { driver } = harness;
      // Calls of the killed process never finish.
      driver.beforeEnsure = () => new Promise(() => {});
      const { answers } = driver;
      driver.emit = () => {};
      Object.assign(harness, await open());
      Object.assign(harness.driver, { answers, ...faults });
      await harness.controller.start();
      await settle();
    },
    close: async () => {
      await harness.controller.close();
      await store.close();
    },
  };
  await harness.controller.start();
  return harness;
}
