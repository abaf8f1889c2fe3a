import { newEvent } from 'capstan/internal';
import type { ServiceTx } from '../store/schema';
import { type DeploymentRecord, findVersion, type VersionRecord } from './records';

/** Returns an event for each version whose state or reason changed, and for changes of the deployment itself. */
export function stateChangeEvents(before: DeploymentRecord, after: DeploymentRecord): ControlEvent[] {
  const events = after.versions.flatMap((version) => {
    const old = before.versions.find(({ id }) => id === version.id);
    return old?.status.state === version.status.state && old.status.reason === version.status.reason
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

function versionEvent({ number, status: { state, reason, message, exitCode, retryAt } }: VersionRecord): ControlEvent {
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

/**
 * Inserts events of the controller. They have no audit row, because no user caused them. Do not call this inside
 * `serviceChange`, which numbers its own events.
 */
export async function recordEvents(
  tx: ServiceTx,
  owner: { type: 'user' | 'org'; id: string },
  target: { type: 'deployment' | 'container' | 'webhook' | 'budget'; id: string },
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
