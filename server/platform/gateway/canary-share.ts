import { header, type StreamedRequest } from 'capstan/internal';
import type { CanaryShare, Target } from './targets';

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
