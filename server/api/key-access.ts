import { type ApiKey, keyJson } from '../access';
import type { OwnerRef } from '../access/owners';
import type { Right } from '../service/roles';
import type { Key, NewKey } from './objects';
import { ApiProblem } from './problem';
import type { ApiCall } from './route';

type Call = Pick<ApiCall, 'context' | 'actor'>;

export interface KeyScope {
  scope?: 'user' | 'org' | 'deployment';
  org?: string;
  deployment?: string;
}

/** What is done with a key: editing is a developer's work, ending or renewing a secret only the own one's. */
export type KeyUse = 'read' | 'edit' | 'end';

const KEY_ID = /^key_[0-9a-z]{26}$/;
const MAX_KEYS_PER_HOUR = 300;
const HOUR_MS = 3_600_000;

/** The key of an id, if the caller may do this with it. Names and public ids are for the command line alone. */
export async function demandKey(
  { context: { store }, actor, params }: Call & Pick<ApiCall, 'params'>,
  use: KeyUse,
): Promise<ApiKey> {
  if (!KEY_ID.test(params.id)) throw new ApiProblem('not_found', 'there is no such key');
  const key = await store.getKey(params.id);
  const rights: Record<KeyUse, Right> = {
    read: 'read',
    edit: 'key.create',
    end: key.createdBy === actor.userId ? 'key.changeOwn' : 'key.changeOthers',
  };
  await store.demandOwner(actor, key.owner, rights[use]);
  return key;
}

/** The keys of one of the three places. */
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

/** Whose a new key is, and what it reaches where the request does not say. */
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
      'the deployment is open to everybody: switch its access control on before it has keys',
    );
  const owner =
    preset === undefined
      ? (spec.owner ?? ownerOf(place, actor.userId))
      : { type: preset.ownerType, id: preset.ownerId };
  await store.demandOwner(actor, owner, 'key.create');
  if ((await store.countKeysSince(owner.id, now() - HOUR_MS)) >= MAX_KEYS_PER_HOUR)
    throw new ApiProblem('quota_exceeded', `an owner makes at most ${MAX_KEYS_PER_HOUR} keys in an hour`);
  const type =
    spec.type ?? (preset !== undefined || (spec.deployments ?? []).length > 0 ? 'deployment-level' : 'user-level');
  return {
    owner,
    type,
    deployments: spec.deployments ?? (preset !== undefined && type === 'deployment-level' ? [preset.id] : []),
  };
}

type Place = { scope: 'user' } | { scope: 'org' | 'deployment'; id: string };

/** NOTE: no parameter is passed over: whoever names a deployment must not get, or make, a key of the whole account. */
function toPlace({ scope, org, deployment }: KeyScope): Place {
  const named = scope ?? (deployment !== undefined ? 'deployment' : org !== undefined ? 'org' : 'user');
  for (const [name, id] of [
    ['org', org],
    ['deployment', deployment],
  ] as const)
    if (id !== undefined && name !== named) throw invalid(name, `expected none with the scope ${named}`);
  if (named === 'user') return { scope: named };
  const id = named === 'org' ? org : deployment;
  if (id === undefined) throw invalid(named, 'expected an id with this scope');
  return { scope: named, id };
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
