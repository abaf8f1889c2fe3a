import { setTimeout as sleep } from 'node:timers/promises';
import { type Client } from '../api/client';
import type { Container, Deployment, Reason, Version } from '../api/objects';
import type { CommandIo } from './io';
import { plain } from './text';

const POLL_MS = 400;
const SHOWN_LINES = 20;

/** The wish did not come true; its message says why, in more than one line where a log does. */
export class NotReached extends Error {
  readonly code = 'not_reached';
}

/** Until the deployment serves what it is to serve; says each state that it passes. @throws NotReached with the reason and the end of the log */
export async function waitUntilRunning(
  client: Client,
  id: string,
  timeoutS: number,
  io: CommandIo,
): Promise<Deployment> {
  const startedMs = io.now();
  const tell = teller(io, startedMs);
  for (;;) {
    const deployment = await client.deployments.get(id);
    const number = deployment.target_version ?? deployment.active_version;
    const version = number === null ? undefined : await client.versions.get(id, number);
    tell(progressOf(deployment, version));
    if (deployment.state === 'running') return deployment;
    if (hasFailed(deployment, version))
      throw new NotReached(failureText(deployment, version?.reason ?? deployment.reason));
    if (io.now() - startedMs > timeoutS * 1000)
      throw new NotReached(
        `${deployment.name} is ${deployment.state} after ${timeoutS} s; it goes on: capstan deployments get ${deployment.name}, capstan logs ${deployment.name}`,
      );
    await sleep(POLL_MS, undefined, { signal: io.signal });
  }
}

export async function waitForContainer(
  client: Client,
  id: string,
  timeoutS: number,
  io: CommandIo,
): Promise<Container> {
  const startedMs = io.now();
  const tell = teller(io, startedMs);
  for (;;) {
    const container = await client.containers.get(id);
    tell(container.state);
    if (container.state === 'running') return container;
    if (container.state === 'error' || container.state === 'stopped')
      throw new NotReached(
        `${container.name}: ${container.state}${container.reason === null ? '' : `: ${plain(container.reason)}`}`,
      );
    if (io.now() - startedMs > timeoutS * 1000)
      throw new NotReached(`${container.name} is ${container.state} after ${timeoutS} s; it goes on`);
    await sleep(POLL_MS, undefined, { signal: io.signal });
  }
}

/** A line on standard error for each new state. */
function teller({ err, now }: CommandIo, startedMs: number): (state: string) => void {
  let last = '';
  return (state) => {
    if (state !== last) err(`${((now() - startedMs) / 1000).toFixed(1).padStart(6)} s  ${state}\n`);
    last = state;
  };
}

function progressOf({ state }: Deployment, version: Version | undefined): string {
  if (version === undefined || version.state === state) return state;
  const restarts = version.replicas.reduce((sum, replica) => sum + replica.restarts, 0);
  return `${state}: version ${version.number} is ${version.state}${restarts === 0 ? '' : ` after ${restarts} restart${restarts === 1 ? '' : 's'}`}`;
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
