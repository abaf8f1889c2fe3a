import { header, type StreamedRequest } from 'capstan/internal';
import type { Target, TargetReplica } from './targets';

/** A version that gets a share of a deployment's requests. */
export interface CanaryShare {
  readonly versionId: string;
  /** Percent of the requests. */
  readonly percent: number;
  /** Requests with this header go to the canary. The name is in lower case. */
  readonly header: { readonly name: string; readonly value: string } | null;
  /** Requests with these keys go to the canary. */
  readonly keyIds: readonly string[];
  /** The ready replicas. */
  readonly replicas: readonly TargetReplica[];
}

/** The version of a deployment with a canary that served a request. */
export interface ServedVariant {
  readonly versionId: string;
  readonly variant: 'stable' | 'canary';
}

/** Returns the target with the replicas of the chosen version, and the choice. Without a canary nothing changes. */
export function chooseVariant(
  target: Target,
  request: Pick<StreamedRequest, 'headers'>,
  keyId: string | undefined,
  random: () => number,
): { target: Target; served: ServedVariant | undefined } {
  const { canary } = target;
  if (canary === undefined || canary.replicas.length === 0) return { target, served: undefined };
  const { versionId, replicas } = canary;
  return isForCanary(canary, request, keyId, random)
    ? { target: { ...target, replicas }, served: { versionId, variant: 'canary' } }
    : { target, served: { versionId, variant: 'stable' } };
}

function isForCanary(
  { percent, header: wanted, keyIds }: CanaryShare,
  request: Pick<StreamedRequest, 'headers'>,
  keyId: string | undefined,
  random: () => number,
): boolean {
  if (wanted !== null && header(request, wanted.name) === wanted.value) return true;
  if (keyId !== undefined && keyIds.includes(keyId)) return true;
  return random() * 100 < percent;
}
