import {
  type Granted,
  header,
  type RecordedReply,
  type ReplicaUsage,
  type RequestTrace,
  type StreamedRequest,
} from 'capstan/internal';
import type { DeploymentAddress } from './address';
import type { Choice } from './balancer';
import { type Bill, type BilledCall, endBill, unusableOutcome } from './billing';
import type { RequestedModel } from './model-api';
import type { PassedOver } from './forward/fallbacks';
import { TokenMeter } from './token-meter';
import type { Target } from './targets';
import type { UpstreamFailure } from './upstream-error';
import type { UnusableResponse } from './upstreams/unusable-response';

/** One request to a deployment, and its outcome. */
export interface Call {
  readonly request: StreamedRequest;
  readonly requestId: string;
  readonly trace?: RequestTrace | undefined;
  readonly reply: RecordedReply;
  readonly address: DeploymentAddress;
  readonly target: Target;
  /** Of a request to the API of all deployments. */
  model?: RequestedModel | undefined;
  readonly grant: Granted | undefined;
  /** Absent: that of a client that waits. */
  readonly priority?: number | undefined;
  /** Aborts when the client disconnects or the key is revoked. */
  readonly signal: AbortSignal;
  /** Deployment of the last attempt: `target`, or one of its fallbacks. */
  servedBy?: Target;
  /** Deployments that could not serve the request, in order. */
  passedOver?: PassedOver[];
  /** Replica of the last attempt. */
  choice?: Pick<Choice, 'replica' | 'upstream' | 'reason' | 'matched'>;
  /** What the last attempt may cost, until its cost is known. */
  bill?: Bill | undefined;
  connectMs?: number;
  /** When the last attempt was sent, in monotonic milliseconds. undefined for a body that still arrived. */
  sentAtMs?: number | undefined;
  /** When the first byte of the response arrived, in monotonic milliseconds. */
  firstByteAtMs?: number;
  usage?: ReplicaUsage | undefined;
  /** Of a call whose client left before the replica reported the usage. Counts for the limits of the key alone. */
  usageEstimate?: ReplicaUsage | undefined;
  /** `usage` is right for the prompt alone. */
  hasPartialUsage?: boolean;
  /** Events of a stream. */
  numEvents?: number;
  /** The replica broke off after the response had started. */
  wasCut?: boolean;
  /** Failures of replicas, in order. A reset of a stale connection does not count. */
  failures: UpstreamFailure[];
  numRetries: number;
}

export function billedCall(
  { address, grant, model, request, target: { deploymentId, ownerId } }: Call,
  target: Target,
): BilledCall {
  return {
    ownerId,
    keyId: grant?.keyId,
    target,
    // A fallback has other models.
    inner: target.deploymentId === deploymentId ? model?.inner : undefined,
    method: request.method,
    path: address.path,
    numBodyBytes: Number(header(request, 'content-length') ?? 0),
  };
}

/** @param status Of the response that was relayed. */
export async function endCall(call: Call, status: number | undefined): Promise<void> {
  const { bill, usage, choice, reply } = call;
  if (bill === undefined) return;
  call.bill = undefined;
  const hasClientLeft = call.signal.aborted;
  // A complete response without usage has none.
  if (bill instanceof TokenMeter && !hasClientLeft) return;
  const { usage: reported, estimate } = await endBill({
    bill,
    usage,
    isPartial: call.hasPartialUsage === true,
    choice,
    status,
    hasClientLeft,
    response: { numBytes: reply.numBytes, numEvents: call.numEvents ?? 0 },
  });
  call.usage = reported;
  call.usageEstimate = estimate;
}

/** Bills an attempt whose response no client gets. */
export async function endUnusable(call: Call, { spent }: UnusableResponse): Promise<void> {
  const { bill, choice } = call;
  if (bill === undefined) return;
  call.bill = undefined;
  ({ usage: call.usage } = await endBill(unusableOutcome(bill, choice, spent)));
}
