/** A gateway that keeps responses, files and batches, in front of replicas of the built-in runtime. */
import OpenAI from 'openai';
import { Access } from '../../../../server/access';
import type { DatabaseLocation } from '../../../../server/access/store/location';
import { DEFAULT_BATCH_LIMITS } from '../../../../server/storage/batches/limits';
import { createTransport } from '../../../../server/http/create-transport';
import { App } from '../../../../server/inference/app';
import { openBatches } from '../../../../server/inference/batches/open-batches';
import { defaultServeOptions } from '../../../../server/inference/serve-options';
import { StorageService, type StorageOptions } from '../../../../server/platform/storage/storage-service';
import type { Target } from '../../../../server/platform/gateway/targets';
import type { Engine } from '../../../../ts';
import { temporaryFolder } from '../../../fakes/temporary-folder';
import { ALICE, BOB, LAB } from '../../access/support';
import { type Running, startGateway, target } from '../gateway/support';

const SECRET = 'the secret of the replica';

export const OWNERS = { alice: ALICE, bob: BOB, lab: LAB };
export type OwnerKey = keyof typeof OWNERS;

/** An owner with a key and two deployments: one with access control, one public. */
export interface Tenant {
  key: string;
  ownerId: string;
  chat: { id: string; ownerId: string };
  open: { id: string; ownerId: string };
}

export async function openTenants(
  location: DatabaseLocation,
): Promise<{ access: Access; tenants: Record<OwnerKey, Tenant> }> {
  const access = await Access.open({ location });
  const tenants = {} as Record<OwnerKey, Tenant>;
  for (const [name, owner] of Object.entries(OWNERS)) {
    const chat = await access.openDeployment(owner, 'chat');
    const open = await access.openDeployment(owner, 'open');
    const { secret } = await access.createKey({ owner, name: 'key', type: 'user-level' });
    tenants[name as OwnerKey] = { key: secret, ownerId: chat.ownerId, chat, open };
  }
  return { access, tenants };
}

/** A replica of the built-in runtime. */
export interface BuiltinReplica {
  port: number;
  /** The bodies of the requests for chat completions, and to /v1/responses and below. */
  bodies: Record<string, unknown>[];
  close: () => Promise<void>;
}

export async function startBuiltin(engine: Engine): Promise<BuiltinReplica> {
  const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
  const { routes } = await openBatches({ ...defaultServeOptions({}), replicaSecret: SECRET }, undefined, log as never);
  const app = new App({
    routes,
    servedNames: ['tiny'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log: log as never,
    replicaSecret: SECRET,
  });
  app.serve(engine);
  const bodies: Record<string, unknown>[] = [];
  const transport = await createTransport('node', {
    handler: async (request, reply) => {
      if (request.method === 'POST' && /^\/v1\/(responses|chat\/completions)/.test(request.path))
        bodies.push(JSON.parse((await request.readBody()).toString()) as Record<string, unknown>);
      await app.handle(request, reply);
    },
    maxBodyBytes: 32 << 20,
    bodyTimeoutMs: 20_000,
  });
  return { port: await transport.listen('127.0.0.1', 0), bodies, close: () => transport.close() };
}

export interface Kept extends Running {
  storage: StorageService;
  dataDir: string;
  owners: string[];
  client: (who: OwnerKey, path?: string) => OpenAI;
  close: () => Promise<void>;
}

export interface KeptSetup {
  access: Access;
  tenants: Record<OwnerKey, Tenant>;
  replica: BuiltinReplica;
  dataDir?: string;
  options?: Partial<StorageOptions>;
  gateway?: Parameters<typeof startGateway>[0];
}

export function slugOf(who: OwnerKey, name: 'chat' | 'open'): string {
  return `${who}-${name}`;
}

export function builtinTarget(
  who: OwnerKey,
  name: 'chat' | 'open',
  { tenants, replica }: Pick<KeptSetup, 'tenants' | 'replica'>,
  fields: Partial<Target> = {},
): Target {
  const { id, ownerId } = tenants[who][name];
  const address = { type: 'tcp', host: '127.0.0.1', port: replica.port } as const;
  return target(slugOf(who, name), [{ id: `rep_${who}_${name}`, address, secret: SECRET, isBuiltin: true }], {
    deploymentId: id,
    ownerId,
    name,
    accessControl: name === 'chat',
    hasStorage: true,
    ...fields,
  });
}

export async function startKept(setup: KeptSetup): Promise<Kept> {
  const { access, tenants, dataDir = temporaryFolder('kept') } = setup;
  const owners = Object.values(tenants).map(({ ownerId }) => ownerId);
  const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
  const storage = await StorageService.open({
    dataDir,
    batches: DEFAULT_BATCH_LIMITS,
    storedResponses: { maxBytes: 1 << 20, ttlMs: 1_000_000 },
    trustedProxies: [],
    access,
    readOwners: () => Promise.resolve(owners),
    log: log as never,
    ...setup.options,
  });
  const running = await startGateway({ access, storage, ...setup.gateway });
  for (const who of Object.keys(OWNERS) as OwnerKey[])
    for (const name of ['chat', 'open'] as const) running.targets.set(builtinTarget(who, name, setup));
  storage.start(running.gateway, running.targets);
  return {
    ...running,
    log,
    storage,
    dataDir,
    owners,
    client: (who, path = '') =>
      new OpenAI({ baseURL: `${running.url}${path}/v1`, apiKey: tenants[who].key, maxRetries: 0 }),
    close: async () => {
      await storage.close();
      running.gateway.close();
      await running.transport.close();
    },
  };
}
