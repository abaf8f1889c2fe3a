/** Runs `capstan up` and other commands as processes, with the built addon and the embedded model. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '../../server/platform/api/client';
import type { Deployment, Version } from '../../server/platform/api/objects';
import { prepare, type Running, start } from '../fakes/server-process';

export const ADMIN = { email: 'ada@example.com', password: 'correct horse battery' };

export interface RunningService extends Running {
  url: string;
  servingUrl: string;
}

/** Creates a data directory, and a file with the password of the first administrator. */
export function makeDataDir(): { dataDir: string; passwordFile: string; remove: () => void } {
  prepare();
  const folder = mkdtempSync(join(tmpdir(), 'capstan-up-'));
  const passwordFile = join(folder, 'password.txt');
  writeFileSync(passwordFile, `${ADMIN.password}\n`, { mode: 0o600 });
  return {
    dataDir: join(folder, 'service'),
    passwordFile,
    remove: () => rmSync(folder, { recursive: true, force: true }),
  };
}

/** Starts the service. Resolves once it is ready. */
export async function startService(dataDir: string, args: readonly string[] = []): Promise<RunningService> {
  const running = start(
    ['up', '--data-dir', dataDir, ...(args.includes('--port') ? [] : ['--port', '0']), ...args],
    {},
  );
  const text = await running.until('\nIsolation: ');
  const [, url, servingUrl] = /management API (\S+), deployments (\S+)/.exec(text)!;
  return { ...running, url, servingUrl };
}

/** Runs a command. Returns its exit code and output. */
export async function capstan(
  args: readonly string[],
  env: NodeJS.ProcessEnv = {},
): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const running = start(args, env);
  const [code] = await running.exited;
  return { code, ...running.output() };
}

export async function clientOf({ url }: RunningService, dataDir: string): Promise<Client> {
  const { stdout, stderr } = await capstan([
    'tokens',
    'create',
    '--data-dir',
    dataDir,
    '--email',
    ADMIN.email,
    '--name',
    `test ${Date.now()}`,
  ]);
  if (stdout === '') throw new Error(stderr);
  return new Client({ url, token: stdout.trim() });
}

/** Deletes all deployments and containers: replicas outlive the service, and a test must leave none. */
export async function discardAll(client: Client): Promise<void> {
  for (const { id, name } of await client.deployments.list()) await client.deployments.remove(id, name);
  for (const { id, name, state } of await client.containers.list()) {
    if (state === 'running') await client.containers.command(id, 'stop');
    await eventually(async () => ['stopped', 'error'].includes((await client.containers.get(id)).state));
    await client.containers.remove(id, name);
  }
  await eventually(async () => (await client.deployments.list()).length === 0);
}

export async function eventually(isTrue: () => Promise<boolean>, timeoutMs = 120_000): Promise<void> {
  for (const startedMs = Date.now(); Date.now() - startedMs < timeoutMs; await sleep(100)) if (await isTrue()) return;
  throw new Error('the condition was not met in time');
}

/** Waits for a state. Throws Error with the version's reason after the timeout. */
export async function until(
  client: Client,
  id: string,
  state: Deployment['state'],
  timeoutMs = 150_000,
): Promise<{ deployment: Deployment; version: Version }> {
  for (const startedMs = Date.now(); ; await sleep(100)) {
    const deployment = await client.deployments.get(id);
    const version = await client.versions.get(id, deployment.target_version ?? deployment.active_version ?? 1);
    if (deployment.state === state) return { deployment, version };
    if (Date.now() - startedMs > timeoutMs)
      throw new Error(`expected ${state}, got ${deployment.state}: ${JSON.stringify(version.reason ?? version.state)}`);
  }
}
