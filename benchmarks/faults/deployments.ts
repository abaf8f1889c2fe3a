/** The deployments of the embedded model that serve the load. */
import type { Served } from './chats';
import { sleep } from './http';
import type { Management } from './management';

const READY_S = 120;

export interface Deployed extends Served {
  replicas: number;
}

export interface Deployments {
  single: Deployed;
  pair: Deployed;
  /** Without access control. */
  open: Deployed;
  /** Gets new versions. */
  moving: Deployed;
}

/** @param variable A secret variable, which must not appear in a log. */
export async function deployAll(api: Management, variable: string): Promise<Deployments> {
  const locked = { access_control: true };
  return {
    single: await withKeys(api, await deploy(api, 'single', 1, { ...locked, secret_env: { HF_TOKEN: variable } })),
    pair: await withKeys(api, await deploy(api, 'pair', 2, locked)),
    open: await deploy(api, 'open', 1),
    moving: await withKeys(api, await deploy(api, 'moving', 1, locked)),
  };
}

async function deploy(api: Management, name: string, replicas: number, more: object = {}): Promise<Deployed> {
  const body = { name, min_replicas: replicas, max_replicas: replicas, ...more };
  const made = await api.call('POST', '/deployments', { body });
  if (made.status !== 202) throw new Error(`${name}: expected status 202, got ${made.status}: ${made.text}`);
  const { id, url } = made.json;
  const deployed = { id, name, url, replicas, secrets: [] };
  await awaitReady(api, deployed);
  return deployed;
}

/** Throws Error if the deployment does not get all its replicas. An update may have failed on the full disk. */
export async function awaitReady(api: Management, { id, name, replicas }: Deployed): Promise<void> {
  let last: any;
  for (let waited = 0; waited < READY_S * 2; waited++) {
    last = await api.read(`/deployments/${id}`);
    if (['running', 'update_failed'].includes(last.state) && last.ready_replicas === replicas) return;
    await sleep(500);
  }
  throw new Error(`${name}: expected ${replicas} ready replicas within ${READY_S} s, got ${JSON.stringify(last)}`);
}

/** Creates one key of each kind. They stay valid. */
async function withKeys(api: Management, deployed: Deployed): Promise<Deployed> {
  const { name, id } = deployed;
  const bodies = [{ name: `${name}, user` }, { name: `${name}, deployment`, deployments: [id] }];
  const made = await Promise.all(bodies.map((body) => api.call('POST', '/keys', { body })));
  return { ...deployed, secrets: made.map(({ json }) => json.secret as string) };
}
