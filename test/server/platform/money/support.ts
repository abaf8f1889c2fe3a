/** A gateway with budgets over a real store, in front of the built-in runtime and of other servers. */
import { randomBytes } from 'node:crypto';
import { Access } from '../../../../server/access';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import { createTransport } from '../../../../server/http/create-transport';
import type { Transport } from '../../../../server/http/transport';
import { App } from '../../../../server/inference/app';
import type { ServiceActor } from '../../../../server/platform/accounts/actor';
import type { Target, TargetReplica } from '../../../../server/platform/gateway/targets';
import { MoneyMeter } from '../../../../server/platform/money/money-meter';
import type { NewBudgetSpec } from '../../../../server/platform/money/budgets';
import type { PriceSpec } from '../../../../server/platform/money/prices';
import { openServiceStore, type ServiceStore } from '../../../../server/platform/store/store';
import type { Engine } from '../../../../ts';
import { type Running, startGateway, target } from '../gateway/support';

const SECRET = 'the secret of the replica';

/** A service of one owner with two deployments, `chat` and `other`. */
export class Shop {
  running!: Running;
  readonly store: ServiceStore;
  readonly meter: MoneyMeter;
  readonly access: Access;
  readonly ownerId: string;
  readonly admin: ServiceActor;
  readonly warnings = jest.fn();
  readonly #transports: Transport[] = [];

  private constructor(store: ServiceStore, meter: MoneyMeter, access: Access, ownerId: string) {
    Object.assign(this, { store, meter, access, ownerId });
    this.store = store;
    this.meter = meter;
    this.access = access;
    this.ownerId = ownerId;
    this.admin = { userId: ownerId, isAdmin: true, via: 'session', canWrite: true, ip: null, userAgent: null };
  }

  static async open(location: DatabaseLocation, now: () => number = Date.now): Promise<Shop> {
    const store = await openServiceStore({ location, secretKey: randomBytes(32) }, now);
    const access = await Access.open({ store });
    const { ownerId } = await access.openDeployment({ type: 'user', name: 'alice@example.com' }, 'chat');
    const log = { info: jest.fn(), warn: jest.fn() };
    const meter = await MoneyMeter.open({ store, log, now });
    const shop = new Shop(store, meter, access, ownerId);
    shop.running = await startGateway({ billing: meter, access, allowsPrivateUpstreams: true });
    return shop;
  }

  async close(): Promise<void> {
    await this.meter.close();
    await this.access.close();
    await this.store.close();
    for (const transport of this.#transports) await transport.close();
  }

  /** Starts a replica of the built-in runtime. */
  async builtin(engine: Engine): Promise<TargetReplica> {
    const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
    const app = new App({
      servedNames: ['tiny'],
      healthStallTimeoutMs: 1000,
      sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
      log: log as never,
      replicaSecret: SECRET,
    });
    app.serve(engine);
    const transport = await createTransport('uws', {
      handler: (request, reply) => app.handle(request, reply),
      maxBodyBytes: 8_000_000,
      bodyTimeoutMs: 20_000,
    });
    this.#transports.push(transport);
    const port = await transport.listen('127.0.0.1', 0);
    return { id: `rep_${port}`, address: { type: 'tcp', host: '127.0.0.1', port }, secret: SECRET, isBuiltin: true };
  }

  deploy(slug: string, replicas: readonly TargetReplica[], fields: Partial<Target> = {}): void {
    this.running.targets.set(target(slug, replicas, { ownerId: this.ownerId, ...fields }));
  }

  price(spec: PriceSpec): Promise<unknown> {
    return this.meter.change(() => this.store.setPrice(this.admin, spec));
  }

  async budget(spec: Partial<NewBudgetSpec> & { amount: string }): Promise<string> {
    const { id } = await this.meter.change(() =>
      this.store.createBudget(this.admin, { subject: this.ownerId, period: 'total', ...spec }),
    );
    return id;
  }

  /** What the budget counts as spent in nanos, according to the database and to this process. */
  async spent(id: string): Promise<{ taken: bigint; spent: bigint; open: bigint }> {
    const { taken, sinceDay } = await this.store.getBudget(this.admin, id);
    const { free, open } = this.meter.heldOf(id, sinceDay);
    return { taken, spent: taken - free - open, open };
  }

  /** The costs in the report, by model. */
  async report(): Promise<Record<string, bigint>> {
    await this.meter.flush();
    const { entries } = await this.store.readSpend(this.admin, { ownerId: this.ownerId, fromDay: 0, toDay: 100_000 });
    const costs: Record<string, bigint> = {};
    for (const { model, cost } of entries) costs[model] = (costs[model] ?? 0n) + cost;
    return costs;
  }

  /** Sends a request whose client leaves when `signal` aborts. */
  leaving(path: string, body: object, signal: AbortSignal): { done: Promise<void>; send: jest.Mock } {
    const bytes = Buffer.from(JSON.stringify(body));
    const send = jest.fn();
    const request = {
      method: 'POST',
      path,
      query: '',
      headers: [
        ['content-type', 'application/json'],
        ['content-length', String(bytes.length)],
      ],
      remoteAddress: '127.0.0.1',
      signal,
      readBody: () => Promise.resolve(bytes),
    };
    const reply = { hasStarted: false, send, stream: send };
    return { done: this.running.gateway.handle(request as never, reply as never), send };
  }

  post(path: string, body: object | string, init: RequestInit = {}): Promise<Response> {
    return fetch(this.running.url + path, {
      method: 'POST',
      body: typeof body === 'string' ? body : JSON.stringify(body),
      ...init,
      headers: { 'Content-Type': 'application/json', ...init.headers },
    });
  }
}

export const question = (text = 'Hi') => ({ messages: [{ role: 'user', content: text }] });

export const NANO = 1_000_000_000n;
