import { type ApiKey, keyJson, type OwnerRef } from 'capstan/internal';
import type { Right } from '../../accounts/roles';
import type { Key, NewKey } from '../objects';
import { ApiProblem } from '../problem';
import type { ApiCall } from '../route';

type Call = Pick<ApiCall, 'context' | 'actor'>;

export interface KeyScope {
  scope?: 'user' | 'org' | 'deployment';
  org?: string;
  deployment?: string;
}

const KEY_ID = /^key_[0-9a-z]{26}$/;
const MAX_KEYS_PER_HOUR = 300;
const HOUR_MS = 3_600_000;

/**
 * Operations on a key. `edit` needs the right to create keys. `end` (disable, rotate, delete) depends on who created
 * the
 * key.
 */
export type KeyUse = 'read' | 'edit' | 'end';

/**
 * Returns the key if the caller may use it this way. Only ids are accepted; names and public ids are for the command
 * line.
 */
export async function authorizeKey(
  { context: { store }, actor, params }: Call & Pick<ApiCall, 'params'>,
  use: KeyUse,
): Promise<ApiKey> {
  if (!KEY_ID.test(params.id)) throw new ApiProblem('not_found', 'this key does not exist');
  const key = await store.getKey(params.id);
  const rights: Record<KeyUse, Right> = {
    read: 'read',
    edit: 'key.create',
    end: key.createdBy === actor.userId ? 'key.changeOwn' : 'key.changeOthers',
  };
  await store.demandOwner(actor, key.owner, rights[use]);
  return key;
}

/** Returns the filter for the keys of a user, an organization or a deployment. */
export async function filterOf(
  { context: { store }, actor }: Call,
  query: KeyScope,
): Promise<{ ownerId: string } | { deploymentId: string }> {
  const place = toPlace(query);
  if (place.scope === 'deployment') return { deploymentId: (await store.demandDeployment(actor, place.id, 'read')).id };
  const owner = ownerOf(place, actor.userId);
  await store.demandOwner(actor, owner, 'read');
  return { ownerId: owner.id };
}

export interface KeyPlace {
  owner: OwnerRef;
  type: 'user-level' | 'deployment-level';
  deployments: string[];
}

/** Returns the owner of a new key, and its type and deployments with their defaults. */
export async function placeOf(
  { context: { store, now }, actor }: Call,
  query: KeyScope,
  spec: NewKey,
): Promise<KeyPlace> {
  const place = toPlace(query);
  const preset = place.scope === 'deployment' ? await store.demandDeployment(actor, place.id, 'key.create') : undefined;
  if (preset?.accessControl === false)
    throw new ApiProblem(
      'conflict',
      'the deployment does not require keys: turn its access control on before you create keys for it',
    );
  const owner =
    preset === undefined
      ? (spec.owner ?? ownerOf(place, actor.userId))
      : { type: preset.ownerType, id: preset.ownerId };
  await store.demandOwner(actor, owner, 'key.create');
  if ((await store.countKeysSince(owner.id, now() - HOUR_MS)) >= MAX_KEYS_PER_HOUR)
    throw new ApiProblem('quota_exceeded', `expected at most ${MAX_KEYS_PER_HOUR} new keys per hour and owner`);
  const type =
    spec.type ?? (preset !== undefined || (spec.deployments ?? []).length > 0 ? 'deployment-level' : 'user-level');
  return {
    owner,
    type,
    deployments: spec.deployments ?? (preset !== undefined && type === 'deployment-level' ? [preset.id] : []),
  };
}

type Place = { scope: 'user' } | { scope: 'org' | 'deployment'; id: string };

/**
 * NOTE: contradictory parameters are refused. A caller who names a deployment must never get a key of the whole
 * account.
 */
function toPlace({ scope, org, deployment }: KeyScope): Place {
  const named = scope ?? defaultScope(org, deployment);
  for (const [name, id] of [
    ['org', org],
    ['deployment', deployment],
  ] as const) {
    if (id !== undefined && name !== named) throw invalid(name, `not allowed with the scope ${named}`);
  }
  if (named === 'user') return { scope: named };
  const id = named === 'org' ? org : deployment;
  if (id === undefined) throw invalid(named, `required with the scope ${named}`);
  return { scope: named, id };
}

function defaultScope(org: string | undefined, deployment: string | undefined): NonNullable<KeyScope['scope']> {
  if (deployment !== undefined) return 'deployment';
  return org === undefined ? 'user' : 'org';
}

function invalid(name: string, message: string): ApiProblem {
  return new ApiProblem('invalid_request', `?${name}: ${message}`, { errors: [{ pointer: `?${name}`, message }] });
}

function ownerOf(place: Place, userId: string): OwnerRef {
  return place.scope === 'org' ? { type: 'org', id: place.id } : { type: 'user', id: userId };
}

export function keyView(key: ApiKey): Key {
  return keyJson(key) as Key;
}
