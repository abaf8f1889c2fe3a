import { setTimeout as sleep } from 'node:timers/promises';
import { type CommandIo, counted } from 'capstan/internal/cli';
import { ApiFailure, type Client } from '../api/client';
import type { Container, DataSource, Deployment, Reason, Version } from '../api/objects';
import { describePull, pullAdvice } from './pull-text';
import { plain } from './text';

const POLL_MS = 400;
const SHOWN_LINES = 20;
/** A restart of the service takes less. */
const UNREACHABLE_MS = 30_000;
const UNREACHABLE = 'the service cannot be reached, trying again for 30 s';

/** The wait ended without success. The message has the reason and may end with log lines. */
class NotReached extends Error {
  readonly code = 'not_reached';
}

/** The result of one query. `failed` ends the wait with an error; `late` is the error after the timeout. */
type Found<T> = { state: string } & ({ reached: T } | { failed: string } | { late: string });

/**
 * Queries until the target is reached. Prints each new state to standard error. The service may restart meanwhile.
 * @throws NotReached
 */
async function poll<T>({ err, now, signal }: CommandIo, timeoutS: number, query: () => Promise<Found<T>>): Promise<T> {
  const startedMs = now();
  let last = '';
  let reachedMs = startedMs;
  for (;;) {
    const found = await query().catch((error: unknown) => {
      const isLate = now() - reachedMs > UNREACHABLE_MS || now() - startedMs > timeoutS * 1000;
      if (!isUnreachable(error) || isLate) throw error;
      return undefined;
    });
    const waitedS = (now() - startedMs) / 1000;
    const state = found?.state ?? UNREACHABLE;
    if (state !== last) err(`${waitedS.toFixed(1).padStart(6)} s  ${state}\n`);
    last = state;
    if (found !== undefined) {
      reachedMs = now();
      if ('reached' in found) return found.reached;
      if ('failed' in found) throw new NotReached(found.failed);
      if (waitedS > timeoutS) throw new NotReached(found.late);
    }
    await sleep(POLL_MS, undefined, { signal });
  }
}

/**
 * Waits until a deployment serves its target version. Prints each new state to standard error.
 * @throws NotReached with the reason and the end of the log
 */
export function waitUntilRunning(client: Client, id: string, timeoutS: number, io: CommandIo): Promise<Deployment> {
  return poll<Deployment>(io, timeoutS, async () => {
    const deployment = await client.deployments.get(id);
    const number = deployment.target_version ?? deployment.active_version;
    const version = number === null ? undefined : await client.versions.get(id, number);
    const state = progressOf(deployment, version);
    if (deployment.state === 'running') return { reached: deployment, state };
    if (hasFailed(deployment, version)) {
      return { state, failed: failureText(deployment, version?.reason ?? deployment.reason) };
    }
    const { name } = deployment;
    const late = `${name} is still ${deployment.state} after ${timeoutS} s. The start continues. See: capstan deployments get ${name}, capstan logs ${name}`;
    return { state, late };
  });
}

/**
 * Waits until a deployment that was stopped or scaled to zero has no replicas. Prints each new state to standard error.
 * @throws NotReached if the deployment starts again, or after the timeout
 */
export function waitUntilStopped(
  client: Client,
  id: string,
  target: 'paused' | 'scaled_to_zero',
  timeoutS: number,
  io: CommandIo,
): Promise<Deployment> {
  return poll<Deployment>(io, timeoutS, async () => {
    const deployment = await client.deployments.get(id);
    const versions = await client.versions.list(id);
    const numReplicas = versions.reduce((sum, { replicas }) => sum + replicas.length, 0);
    const { name, state } = deployment;
    if (state !== target && state !== 'stopping') {
      return { state, failed: `expected ${name} to stop, but it is ${state}` };
    }
    if (state === target && numReplicas === 0) return { reached: deployment, state };
    const replicas = counted(numReplicas, 'replica');
    return {
      state: numReplicas === 0 ? state : `${state}: ${replicas} left`,
      late: `${name} still has ${replicas} after ${timeoutS} s. The stop continues`,
    };
  });
}

/** Waits until a container runs. Prints each new state to standard error. @throws NotReached */
export function waitForContainer(client: Client, id: string, timeoutS: number, io: CommandIo): Promise<Container> {
  return poll<Container>(io, timeoutS, async () => {
    const container = await client.containers.get(id);
    const { name, state, reason } = container;
    if (state === 'running') return { reached: container, state };
    if (state === 'error' || state === 'stopped') {
      return { state, failed: `${name}: ${state}${reason === null ? '' : `: ${plain(reason)}`}` };
    }
    return { state, late: `${name} is still ${state} after ${timeoutS} s. The start continues` };
  });
}

/** Waits until a data source holds its model. Prints its progress to standard error. @throws NotReached */
export function waitForPull(
  client: Client,
  { id, name }: DataSource,
  timeoutS: number,
  io: CommandIo,
): Promise<DataSource> {
  return poll<DataSource>(io, timeoutS, async () => {
    const source = await client.request<DataSource>('GET', `/data-sources/${id}`);
    const { pull } = source;
    const state = describePull(pull);
    if (pull === null || pull.state === 'done') return { reached: source, state };
    if (pull.state === 'failed' || pull.state === 'cancelled')
      return { state: pull.state, failed: `${plain(name)}: ${state}\n${pullAdvice(name, pull)}` };
    return { state, late: `${plain(name)}: ${state} after ${timeoutS} s. The download continues` };
  });
}

function isUnreachable(error: unknown): boolean {
  return error instanceof ApiFailure && (error.code === 'unreachable' || error.code === 'standby');
}

function progressOf({ state }: Deployment, version: Version | undefined): string {
  if (version === undefined || version.state === state) return state;
  const restarts = version.replicas.reduce((sum, replica) => sum + replica.restarts, 0);
  const waits = version.state === 'queued' || version.state === 'backoff' ? version.reason : null;
  // The reason of a backoff has the number of exits.
  const after = waits === null && restarts > 0 ? ` after ${counted(restarts, 'restart')}` : '';
  const does = version.state === 'backoff' ? 'waits to restart' : `is ${version.state}`;
  return `${state}: version ${version.number} ${does}${waits === null ? '' : `: ${plain(waits.message)}`}${after}`;
}

function hasFailed({ state }: Deployment, version: Version | undefined): boolean {
  return (
    state === 'failed' ||
    state === 'update_failed' ||
    state === 'paused' ||
    state === 'deleting' ||
    version?.state === 'error'
  );
}

function failureText({ name, state }: Deployment, reason: Reason | null): string {
  if (reason === null) return `${name} is ${state}`;
  const lines = reason.last_lines.slice(-SHOWN_LINES).map((line) => `  | ${plain(line)}`);
  return [
    `${name}: ${reason.code}: ${plain(reason.message)}${reason.exit_code === null ? '' : ` (exit code ${reason.exit_code})`}`,
    ...lines,
  ].join('\n');
}
