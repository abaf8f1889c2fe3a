import { isInactive } from '../deployments/version-state';
import { type DeploymentRecord, queueVersion, type VersionRecord } from './records';
import { command, signal } from './version-status';

/**
 * Removes the replicas that another machine ran: they are lost for the service that controls the deployments now. The
 * active version and the target start again here, and the loss does not count as an exit.
 */
export function restartFromElsewhere(deployment: DeploymentRecord, nowMs: number): void {
  for (const version of deployment.versions) {
    if (!version.replicas.some(({ isElsewhere }) => isElsewhere)) continue;
    version.replicas = version.replicas.filter(({ isElsewhere }) => !isElsewhere);
    if (version.status.state === 'stopping' || isInactive(version.status.state)) continue;
    endVersion(version, nowMs);
    if (version.id === deployment.activeId || version.id === deployment.targetId) queueVersion(version, nowMs);
  }
}

function endVersion(version: VersionRecord, nowMs: number): void {
  version.status = signal(command(version.status, 'stop', nowMs), 'ended', nowMs);
}
