/** The faults, and the time until the service serves again after each. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Random } from '../../server/bench/random';
import { descendantsOf } from '../../server/platform/driver/process/processes';
import { statFields } from '../../server/platform/driver/process/replica-folder';
import type { Chats, Served } from './chats';
import type { Begin, TestedDatabase } from './database';
import type { SmallDisk } from './disk';
import { sleep } from './http';
import type { Ledger } from './ledger';
import { type Management, outcomeOf } from './management';
import type { ServiceProcess } from './service-process';
import type { VersionWriter } from './version-writer';

/** The service must serve again within these seconds after the cause of a fault has ended. */
export const BOUNDS_S = { service: 60, database: 30, disk: 30, replica: 120 } as const;
/** A version with more exits than this would wait too long before it starts again. A new version starts from zero. */
const MAX_EXITS = 2;
const POLL_MS = 250;

export interface Recovery {
  fault: string;
  seconds: number;
  boundS: number;
}

export interface InjectorOptions {
  random: Random;
  ledger: Ledger;
  service: ServiceProcess;
  database: TestedDatabase;
  disk: SmallDisk;
  dataDir: string;
  api: Management;
  chats: Chats;
  served: readonly Served[];
  versions: VersionWriter;
}

interface Fault {
  name: string;
  /** Whether it ends the process of the service. */
  endsService: boolean;
  run: () => Promise<void>;
}

export class Injector {
  readonly recoveries: Recovery[] = [];
  readonly #options: InjectorOptions;
  readonly #exits = new Map<string, number>();
  #order: Fault[] = [];

  constructor(options: InjectorOptions) {
    this.#options = options;
  }

  /** Injects one fault and waits until the service has recovered. Every fault comes once before any comes again. */
  async step({ endsService }: { endsService: boolean }): Promise<void> {
    const { random, ledger } = this.#options;
    if (this.#order.length === 0) this.#order = shuffled(this.#faults(), random);
    const next = this.#order.findIndex((fault) => endsService || !fault.endsService);
    if (next === -1) {
      this.#order = [];
      return;
    }
    const [fault] = this.#order.splice(next, 1);
    ledger.note(fault.name);
    ledger.count('faults');
    await fault.run();
  }

  #faults(): Fault[] {
    const { database, disk, service } = this.#options;
    const kill = (): void => service.kill();
    const fill: Begin = () => {
      const free = disk.fill();
      return Promise.resolve(() => Promise.resolve(free()));
    };
    const causes = [
      ...database.faults.map(({ name, begin }) => ({ name, begin, boundS: BOUNDS_S.database })),
      { name: 'disk full', begin: fill, boundS: BOUNDS_S.disk },
    ];
    return [
      ...[1, 2, 3].map(() => ({ name: 'service killed', endsService: true, run: () => this.#killService() })),
      ...causes.flatMap(({ name, begin, boundS }) => [
        { name, endsService: false, run: () => this.#cause(name, begin, boundS, 'changes') },
        {
          name: `${name}, service killed`,
          endsService: true,
          run: () => this.#cause(`${name}, service killed`, begin, BOUNDS_S.service, 'all', kill),
        },
      ]),
      ...(['replica', 'sandbox', 'supervisor'] as const).map((part) => ({
        name: `${part} killed`,
        endsService: false,
        run: () => this.#killReplica(part),
      })),
      { name: 'replica frozen', endsService: false, run: () => this.#freezeReplica() },
    ];
  }

  async #killService(): Promise<void> {
    const end = this.#options.ledger.excuse('all');
    this.#options.service.kill();
    await this.#recover('service killed', BOUNDS_S.service, this.#options.served);
    end();
  }

  /** A cause that lasts for some seconds. */
  async #cause(name: string, begin: Begin, boundS: number, scope: string, during?: () => void): Promise<void> {
    const { random, ledger, served } = this.#options;
    const ends = [ledger.excuse(scope), ledger.excuse('changes')];
    const stop = await begin();
    await sleep(random.integer(3_000, 12_000));
    during?.();
    await sleep(random.integer(3_000, 12_000));
    await stop();
    await this.#recover(name, boundS, served);
    for (const end of ends) end();
  }

  async #killReplica(part: 'replica' | 'sandbox' | 'supervisor'): Promise<void> {
    const victim = await this.#pickVictim();
    if (victim === undefined) return;
    const { served, pids } = victim;
    const end = this.#options.ledger.excuse(served.name);
    // The supervisor is the first, the process that it started the second, and the workload the last.
    const pid = { supervisor: pids[0], sandbox: pids[1], replica: pids.at(-1)! }[part];
    tryKill(pid, 'SIGKILL');
    while (pids.some(isRunning)) await sleep(20);
    await this.#recover(`${part} killed`, BOUNDS_S.replica, [served]);
    end();
    await this.#countExit(served);
  }

  async #freezeReplica(): Promise<void> {
    const victim = await this.#pickVictim();
    if (victim === undefined) return;
    const { served, pids } = victim;
    const end = this.#options.ledger.excuse(served.name);
    for (const pid of pids.slice(1)) tryKill(pid, 'SIGSTOP');
    await sleep(this.#options.random.integer(5_000, 20_000));
    for (const pid of pids.slice(1)) tryKill(pid, 'SIGCONT');
    await this.#recover('replica frozen', BOUNDS_S.replica, [served]);
    end();
  }

  /** Picks a running replica. Its supervisor is the first of its processes. */
  async #pickVictim(): Promise<{ served: Served; pids: number[] } | undefined> {
    const { random, served: all, api, dataDir } = this.#options;
    const served = all[random.integer(0, all.length - 1)];
    const versions = await api.list(`/deployments/${served.id}/versions`);
    const ids: string[] = versions
      .filter((version) => version.is_active)
      .flatMap((version) => version.replicas.map(({ id }: { id: string }) => id));
    const running = ids.map((id) => processesOf(dataDir, id)).filter((pids) => pids.length > 2);
    return running.length === 0 ? undefined : { served, pids: running[random.integer(0, running.length - 1)] };
  }

  async #countExit(served: Served): Promise<void> {
    const numExits = (this.#exits.get(served.id) ?? 0) + 1;
    this.#exits.set(served.id, numExits);
    if (numExits < MAX_EXITS) return;
    if ((await this.#options.versions.write(served)) === 'acknowledged') this.#exits.set(served.id, 0);
  }

  /** Waits until each deployment answers right and a change succeeds. */
  async #recover(fault: string, boundS: number, served: readonly Served[]): Promise<void> {
    const { ledger } = this.#options;
    const beganMs = performance.now();
    const secondsSince = (): number => (performance.now() - beganMs) / 1000;
    const waiting = new Set<string>([...served.map(({ name }) => name), 'changes']);
    await Promise.all([
      ...served.map((one) =>
        this.#until(
          () => this.#answers(one),
          boundS,
          () => waiting.delete(one.name),
        ),
      ),
      this.#until(
        () => this.#changes(),
        boundS,
        () => waiting.delete('changes'),
      ),
    ]);
    const seconds = secondsSince();
    this.recoveries.push({ fault, seconds, boundS });
    ledger.note(`${fault}: recovered after ${seconds.toFixed(1)} s`);
    if (seconds > boundS)
      ledger.problem(`${fault}: not recovered within ${boundS} s (${[...waiting].join(', ') || 'recovered later'})`);
  }

  /** Gives up after three times the bound. */
  async #until(test: () => Promise<boolean>, boundS: number, done: () => void): Promise<void> {
    for (const beganMs = performance.now(); performance.now() - beganMs < 3_000 * boundS; await sleep(POLL_MS)) {
      if (await test()) return done();
    }
  }

  #answers(served: Served): Promise<boolean> {
    return this.#options.chats.ask(served, this.#options.random);
  }

  async #changes(): Promise<boolean> {
    const { api } = this.#options;
    const me = await api.call('GET', '/me');
    if (me.status !== 200) return false;
    const theme = me.json.theme === 'dark' ? 'light' : 'dark';
    const headers = { 'If-Match': String(me.headers.etag) };
    return outcomeOf(await api.call('PATCH', '/me', { body: { theme }, headers })) === 'acknowledged';
  }
}

/** The supervisor of a replica and its processes, or nothing if it does not run. */
function processesOf(dataDir: string, replicaId: string): number[] {
  try {
    const state = readFileSync(join(dataDir, 'replicas', replicaId, 'state'), 'utf8');
    const pid = Number(/^pid (\d+)/m.exec(state)![1]);
    return [pid, ...descendantsOf(pid)];
  } catch {
    return [];
  }
}

/** The ids of all replicas that have a folder. */
export function replicaIds(dataDir: string): string[] {
  return readdirSync(join(dataDir, 'replicas')).filter((name) => name.startsWith('rep_'));
}

function isRunning(pid: number): boolean {
  const [state = 'Z'] = statFields(pid) ?? [];
  return state !== 'Z';
}

function tryKill(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // It has ended by itself.
  }
}

function shuffled<T>(items: readonly T[], random: Random): T[] {
  const left = [...items];
  return items.map(() => left.splice(random.integer(0, left.length - 1), 1)[0]);
}
