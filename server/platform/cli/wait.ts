import { setTimeout as sleep } from 'node:timers/promises';
import { type CommandIo, counted } from 'capstan/internal';
import { type Client } from '../api/client';
import type { Container, Deployment, Reason, Version } from '../api/objects';
import { plain } from './text';

const POLL_MS = 400;
const SHOWN_LINES = 20;

/** The wait ended without success. The message has the reason and may end with log lines. */
class NotReached extends Error {
  readonly code = 'not_reached';
}

/**
 * Waits until a deployment serves its target version. Prints each new state to standard error.
 * @throws NotReached with the reason and the end of the log
 */
export async function waitUntilRunning(
  client: Client,
  id: string,
  timeoutS: number,
  io: CommandIo,
): Promise<Deployment> {
  const startedMs = io.now();
  const report = stateReporter(io, startedMs);
  for (;;) {
    const deployment = await client.deployments.get(id);
    const number = deployment.target_version ?? deployment.active_version;
    const version = number === null ? undefined : await client.versions.get(id, number);
    report(progressOf(deployment, version));
    if (deployment.state === 'running') return deployment;
    if (hasFailed(deployment, version))
      throw new NotReached(failureText(deployment, version?.reason ?? deployment.reason));
    if (io.now() - startedMs > timeoutS * 1000)
      throw new NotReached(
        `${deployment.name} is still ${deployment.state} after ${timeoutS} s. The start continues. See: capstan deployments get ${deployment.name}, capstan logs ${deployment.name}`,
      );
    await sleep(POLL_MS, undefined, { signal: io.signal });
  }
}

/**
 * Waits until a deployment that was stopped or scaled to zero has no replicas. Prints each new state to standard error.
 * @throws NotReached if the deployment starts again, or after the timeout
 */
export async function waitUntilStopped(
  client: Client,
  id: string,
  state: 'paused' | 'scaled_to_zero',
  timeoutS: number,
  io: CommandIo,
): Promise<Deployment> {
  const startedMs = io.now();
  const report = stateReporter(io, startedMs);
  for (;;) {
    const deployment = await client.deployments.get(id);
    const versions = await client.versions.list(id);
    const numReplicas = versions.reduce((sum, { replicas }) => sum + replicas.length, 0);
    report(numReplicas === 0 ? deployment.state : `${deployment.state}: ${counted(numReplicas, 'replica')} left`);
    if (deployment.state === state && numReplicas === 0) return deployment;
    if (deployment.state !== state && deployment.state !== 'stopping')
      throw new NotReached(`expected ${deployment.name} to stop, but it is ${deployment.state}`);
    if (io.now() - startedMs > timeoutS * 1000)
      throw new NotReached(
        `${deployment.name} still has ${counted(numReplicas, 'replica')} after ${timeoutS} s. The stop continues`,
      );
    await sleep(POLL_MS, undefined, { signal: io.signal });
  }
}

/** Waits until a container runs. Prints each new state to standard error. @throws NotReached */
export async function waitForContainer(
  client: Client,
  id: string,
  timeoutS: number,
  io: CommandIo,
): Promise<Container> {
  const startedMs = io.now();
  const report = stateReporter(io, startedMs);
  for (;;) {
    const container = await client.containers.get(id);
    report(container.state);
    if (container.state === 'running') return container;
    if (container.state === 'error' || container.state === 'stopped')
      throw new NotReached(
        `${container.name}: ${container.state}${container.reason === null ? '' : `: ${plain(container.reason)}`}`,
      );
    if (io.now() - startedMs > timeoutS * 1000)
      throw new NotReached(`${container.name} is still ${container.state} after ${timeoutS} s. The start continues`);
    await sleep(POLL_MS, undefined, { signal: io.signal });
  }
}

/** Returns a function that prints a state to standard error when it differs from the last one. */
function stateReporter({ err, now }: CommandIo, startedMs: number): (state: string) => void {
  let last = '';
  return (state) => {
    if (state !== last) err(`${((now() - startedMs) / 1000).toFixed(1).padStart(6)} s  ${state}\n`);
    last = state;
  };
}

function progressOf({ state }: Deployment, version: Version | undefined): string {
  if (version === undefined || version.state === state) return state;
  const restarts = version.replicas.reduce((sum, replica) => sum + replica.restarts, 0);
  return `${state}: version ${version.number} is ${version.state}${restarts === 0 ? '' : ` after ${counted(restarts, 'restart')}`}`;
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
