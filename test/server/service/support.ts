import path from 'node:path';
import type {
  Driver,
  DriverCapacity,
  DriverHandle,
  ExitCause,
  Isolation,
  ReplicaEvent,
  ReplicaSpec,
} from '../../../server/driver/driver';
import { Targets } from '../../../server/gateway/targets';
import type { DatabaseLocation } from '../../../server/access/location';
import type { ServiceActor } from '../../../server/service/actor';
import type { Clock } from '../../../server/service/clock';
import { Controller } from '../../../server/service/controller';
import { HomeSnapshots } from '../../../server/service/home-snapshots';
import type { Machine } from '../../../server/service/machine';
import { openServiceStore, type ServiceStore } from '../../../server/service/store';
import { type ControlPolicy, DEFAULT_CONTROL_POLICY } from '../../../server/service/work';

export const START = 1_800_000_000_000;
export const SECRET_KEY = new Uint8Array(32).fill(7);

/** Time that stands still until it is moved. */
export class FakeClock implements Clock {
  #nowMs = START;
  #timers: { at: number; run: () => void }[] = [];

  now = (): number => this.#nowMs;

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

  /** Every timer on the way runs at its time, and what it starts is waited for. */
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

/** A machine with processes on it: it outlives the service's own. */
export class FakeWorld {
  readonly running = new Map<string, FakeProcess>();
  readonly started: ReplicaSpec[] = [];
}

/** A driver that is told by the test what happens. Processes answer at once where `answers` says so. */
export class FakeDriver implements Driver {
  readonly name = 'fake';
  readonly isolation: Isolation;
  readonly world: FakeWorld;
  readonly stops: { id: string; graceMs: number }[] = [];
  /** Whether a process that is started answers at once. */
  answers: (spec: ReplicaSpec) => boolean = () => true;
  /** Fails, or holds up, a start. */
  beforeEnsure: (spec: ReplicaSpec) => Promise<void> = () => Promise.resolve();
  #listener: ((event: ReplicaEvent) => void) | undefined;
  readonly #capacity: DriverCapacity;

  constructor(world: FakeWorld, { isolation, capacity }: Pick<Machine, 'isolation' | 'capacity'>) {
    this.world = world;
    this.isolation = isolation;
    this.#capacity = capacity;
  }

  capacity = (): Promise<DriverCapacity> => Promise.resolve(this.#capacity);

  async ensure(spec: ReplicaSpec): Promise<DriverHandle> {
    await this.beforeEnsure(spec);
    const known = this.world.running.get(spec.id);
    if (known !== undefined) return this.adopt(known.handle.reference, spec).then(() => known.handle);
    const handle: DriverHandle = {
      reference: `pid of ${spec.id}`,
      address: { type: 'tcp', host: '127.0.0.1', port: 1000 + this.world.started.length },
    };
    this.world.running.set(spec.id, { spec, handle });
    this.world.started.push(spec);
    if (this.answers(spec)) this.tell({ type: 'ready', replicaId: spec.id });
    return handle;
  }

  adopt(reference: string, spec: ReplicaSpec): Promise<DriverHandle | undefined> {
    const known = this.world.running.get(spec.id);
    if (known?.handle.reference !== reference) return Promise.resolve(undefined);
    if (this.answers(spec)) this.tell({ type: 'ready', replicaId: spec.id });
    return Promise.resolve(known.handle);
  }

  observe(listener: (event: ReplicaEvent) => void): () => void {
    this.#listener = listener;
    return () => {
      this.#listener = undefined;
    };
  }

  stop(replicaId: string, graceMs: number): Promise<void> {
    this.stops.push({ id: replicaId, graceMs });
    this.world.running.delete(replicaId);
    return Promise.resolve();
  }

  usage = () => Promise.resolve(undefined);
  detach = () => Promise.resolve();

  /** After the call that it belongs to, as events of processes come. */
  tell(event: ReplicaEvent): void {
    setImmediate(() => this.#listener?.(event));
  }

  exit(replicaId: string, exitCode: number | null = 1, more: { cause?: ExitCause } = {}): void {
    this.world.running.delete(replicaId);
    this.tell({
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

export interface Harness {
  store: ServiceStore;
  controller: Controller;
  driver: FakeDriver;
  targets: Targets;
  clock: FakeClock;
  world: FakeWorld;
  logs: Map<string, string[]>;
  actor: ServiceActor;
  settle: () => Promise<void>;
  advance: (ms: number) => Promise<void>;
  /** kill -9, and another process over what is left. */
  killAndRestart: () => Promise<void>;
  close: () => Promise<void>;
}

export function actorOf(userId: string, more: Partial<ServiceActor> = {}): ServiceActor {
  return { userId, isAdmin: false, via: 'session', canWrite: true, ip: '192.0.2.1', userAgent: 'test', ...more };
}

export async function openHarness(
  location: DatabaseLocation,
  folder: string,
  of: Machine = machine(),
  policy: ControlPolicy = DEFAULT_CONTROL_POLICY,
): Promise<Harness> {
  const clock = new FakeClock();
  const world = new FakeWorld();
  const logs = new Map<string, string[]>();
  const store = await openServiceStore({ location, secretKey: SECRET_KEY, version: '1.0.0', machine: of }, clock.now);
  const account = await store.createAccount({
    email: 'ann@example.com',
    name: 'Ann',
    password: 'correct horse battery',
  });
  let numCalls = 0;
  const counted = new Proxy(store, {
    get:
      (target, method) =>
      (...args: unknown[]) => {
        numCalls++;
        return (target[method as 'readLaunch'] as (...values: unknown[]) => Promise<unknown>)(...args).finally(() => {
          numCalls--;
        });
      },
  });
  const open = () => {
    const driver = new FakeDriver(world, of);
    const targets = new Targets();
    const controller = new Controller({
      store: counted,
      driver,
      targets,
      clock,
      policy,
      dataRoots: of.dataRoots,
      snapshots: new HomeSnapshots(path.join(folder, 'snapshots')),
      log: { info: () => {}, warn: () => {} },
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
    clock,
    world,
    logs,
    actor: actorOf(account.userId),
    settle,
    ...open(),
    advance: (ms) => clock.advance(ms, settle),
    killAndRestart: async () => {
      const { driver } = harness;
      // What the process that is gone had under way comes to nothing.
      driver.beforeEnsure = () => new Promise(() => {});
      const { answers } = driver;
      driver.tell = () => {};
      Object.assign(harness, open());
      harness.driver.answers = answers;
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
