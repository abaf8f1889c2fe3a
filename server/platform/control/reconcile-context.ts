import type { ControlEvent } from './control-events';
import type { Pool } from './pool';
import type { Activity, ControlPolicy } from './records';

/** What a reconcile step reads besides the deployment itself. */
export interface ReconcileContext {
  nowMs: number;
  /** When this service began to observe the replicas. Deadlines do not count the time before. */
  observedSinceMs: number;
  policy: ControlPolicy;
  activity: Activity;
  pool: Pool;
  /** Returns a new id for each start, so that a late observation of an earlier start matches no replica. */
  newReplica: () => { id: string; secret: string };
  /** Reports a decision to users. */
  emit: (event: ControlEvent) => void;
}
