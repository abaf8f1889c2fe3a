import type { ServiceActor } from '../accounts/actor';
import {
  type CanarySplit,
  decideCanary,
  editCanary,
  failCanary,
  getCanary,
  readCanaryStats,
  saveCanaryStats,
} from '../canary/canaries';
import type { CanaryStats } from '../canary/canary-rule';
import type { StoreContext } from './store-context';

/** Methods with an actor check its rights. The others are for the watcher. */
export function canaryMethods(context: StoreContext) {
  return {
    getCanary: (actor: ServiceActor, deploymentId: string) => getCanary(context, actor, deploymentId),
    editCanary: (actor: ServiceActor, deploymentId: string, split: CanarySplit) =>
      editCanary(context, actor, deploymentId, split),
    decideCanary: (actor: ServiceActor, deploymentId: string, decision: 'promoting' | 'rolling_back') =>
      decideCanary(context, actor, deploymentId, decision),
    failCanary: (deploymentId: string, versionId: string, reason: string) =>
      failCanary(context, deploymentId, versionId, reason),
    saveCanaryStats: (deploymentId: string, versionId: string, stats: CanaryStats) =>
      saveCanaryStats(context, deploymentId, versionId, stats),
    readCanaryStats: (deploymentId: string, versionId: string) => readCanaryStats(context, deploymentId, versionId),
  };
}

export type CanaryStore = ReturnType<typeof canaryMethods>;
