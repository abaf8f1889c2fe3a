import type { OwnerReference } from '../../api/objects';
import { withQuery } from '../router/match';

/** The three places where keys are managed. */
export type KeyScope =
  | { type: 'user'; ownerId: string }
  | { type: 'org'; ownerId: string }
  | { type: 'deployment'; ownerId: string; ownerType: 'user' | 'org'; deploymentId: string; deploymentName: string };

export function ownerOf(scope: KeyScope): OwnerReference {
  return { type: scope.type === 'deployment' ? scope.ownerType : scope.type, id: scope.ownerId };
}

export function keysPath(scope: KeyScope): string {
  if (scope.type === 'deployment') return withQuery('/keys', { scope: 'deployment', deployment: scope.deploymentId });
  return withQuery('/keys', { scope: scope.type, org: scope.type === 'org' ? scope.ownerId : undefined });
}
