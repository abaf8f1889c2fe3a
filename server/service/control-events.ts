import { newEvent } from '../access/audit';
import type { ServiceTx } from './schema';
import { type DeploymentWork, findVersion, type VersionWork } from './work';

/** One for each version, and for the deployment, that is not what it was. */
export function workEvents(before: DeploymentWork, after: DeploymentWork): ControlEvent[] {
  const events = after.versions.flatMap((version) => {
    const known = before.versions.find(({ id }) => id === version.id);
    return known?.life.state === version.life.state && known.life.reason === version.life.reason
      ? []
      : [versionEvent(version)];
  });
  if (before.activeId !== after.activeId)
    events.push({
      type: 'deployment.activated',
      data: { version: findVersion(after, after.activeId)?.number ?? null },
    });
  if (before.observed !== after.observed)
    events.push({
      type: `deployment.${after.observed}`,
      data: { version: findVersion(after, after.targetId ?? after.activeId)?.number ?? null },
    });
  return events;
}

function versionEvent({ number, life: { state, reason, message, exitCode, retryAt } }: VersionWork): ControlEvent {
  return {
    type: `version.${state}`,
    data: {
      version: number,
      ...(reason === null ? {} : { reason, message }),
      ...(state === 'backoff' ? { exit_code: exitCode, retry_at: retryAt } : {}),
    },
  };
}

export interface ControlEvent {
  type: string;
  data: object;
}

/** Without an audit row: nobody did it. Not inside a change by a person, which numbers its own. */
export async function recordEvents(
  tx: ServiceTx,
  owner: { type: 'user' | 'org'; id: string },
  target: { type: 'deployment' | 'container' | 'webhook'; id: string },
  events: readonly ControlEvent[],
  nowMs: number,
): Promise<void> {
  if (events.length === 0) return;
  const { event_seq: last } = await tx
    .updateTable('auth_state')
    .set((eb) => ({ event_seq: eb('event_seq', '+', events.length) }))
    .returning('event_seq')
    .executeTakeFirstOrThrow();
  for (const [index, { type, data }] of events.entries())
    await tx
      .insertInto('events')
      .values(newEvent(last - events.length + 1 + index, { action: type, owner, target, after: data }, nowMs))
      .execute();
}
