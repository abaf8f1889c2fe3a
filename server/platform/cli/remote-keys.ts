import {
  AccessError,
  type ApiKey,
  type CommandIo,
  DEFAULT_OWNER,
  type KeyEdit,
  type KeyFilter,
  type KeySpec,
  type KeysStore,
  type NewKey,
  type OwnerName,
} from 'capstan/internal/cli';
import type { Client } from '../api/client';
import type {
  ChangedKey,
  Key,
  KeyEdit as KeyEditBody,
  MadeKey,
  NewKey as NewKeyBody,
  OwnerReference,
} from '../api/objects';
import { findDeployment, findOwner } from './find';
import { connect } from './remote';
import { defined } from './spec-flags';

/** Returns the keys of a running service as a {@link KeysStore}. */
export function openRemoteKeys(flags: { url?: string; token?: string }, io: CommandIo): KeysStore {
  const client = connect(flags, io);
  const edit = async (reference: string, body: KeyEditBody): Promise<ApiKey> => {
    const { id, rev } = await findKey(client, reference);
    return toApiKey(await client.request<ChangedKey>('PATCH', `/keys/${id}`, { body, ifMatch: rev }));
  };
  return {
    createKey: async (spec) =>
      toNewKey(await client.request<MadeKey>('POST', '/keys', { body: await toBody(client, spec) })),
    editKey: async (reference, change) => edit(reference, await toEdit(client, change)),
    setKeyEnabled: (reference, isEnabled) => edit(reference, { disabled: !isEnabled }),
    rotateKey: async (reference, graceMs) => {
      const { id, rev } = await findKey(client, reference);
      return toNewKey(
        await client.request<MadeKey>('POST', `/keys/${id}/rotate`, {
          body: { grace_s: Math.ceil(graceMs / 1000) },
          ifMatch: rev,
        }),
      );
    },
    finishRotation: async (reference) => {
      const { id, rev } = await findKey(client, reference);
      return toApiKey(await client.request<ChangedKey>('POST', `/keys/${id}/rotate/finish`, { ifMatch: rev }));
    },
    deleteKey: async (reference) => {
      const key = await findKey(client, reference);
      return toApiKey(
        await client.request<ChangedKey>('DELETE', `/keys/${key.id}`, {
          query: { confirm: key.name },
          ifMatch: key.rev,
        }),
      );
    },
    getKey: async (reference) => toApiKey(await findKey(client, reference)),
    findOwner: async (owner) => (await ownerReference(client, owner)) ?? { type: 'user', id: '' },
    pageKeys: async (filter, { limit = 100, after, sort, descending }) => {
      const query = {
        ...(await scopeOf(client, filter)),
        limit,
        ...defined('after', after),
        ...defined('q', filter.search),
        ...defined('sort', sort),
        ...defined('order', descending === true ? 'desc' : undefined),
        ...defined('include_deleted', filter.includeDeleted),
      };
      const { data, next } = await client.request<{ data: Key[]; next: string | null }>('GET', '/keys', { query });
      return { data: data.map(toApiKey), next };
    },
    close: () => Promise.resolve(),
  };
}

/**
 * Finds a key by ID, by the public ID inside it, or by a name that only one key has. Searches the keys of the
 * caller and of the organizations that the caller is in.
 */
async function findKey(client: Client, reference: string): Promise<Key> {
  if (reference.startsWith('key_')) return client.request<Key>('GET', `/keys/${reference}`);
  const organizations = await client.all<{ id: string }>('/orgs', {});
  const lists = await Promise.all([
    client.all<Key>('/keys', { scope: 'user' }),
    ...organizations.map(({ id }) => client.all<Key>('/keys', { scope: 'org', org: id })),
  ]);
  const found = lists
    .flat()
    .filter((key) => key.state !== 'deleted' && (key.public_id === reference || key.name === reference));
  if (found.length === 0) throw new AccessError('not_found', 'no key has this ID or name: see capstan keys list');
  if (found.length > 1)
    throw new AccessError(
      'invalid_argument',
      `several keys are called ${reference}. Use an ID: ${found.map(({ id }) => id).join(', ')}`,
    );
  return found[0];
}

/** Returns the query for the caller's keys, those of an organization, or those for a deployment. */
async function scopeOf(
  client: Client,
  { ownerId = '', boundTo = [] }: KeyFilter,
): Promise<{ scope: string; org?: string; deployment?: string }> {
  if (boundTo.length > 1) throw new AccessError('invalid_argument', '--deployment: expected only once with --url');
  if (boundTo.length === 1) return { scope: 'deployment', deployment: (await findDeployment(client, boundTo[0])).id };
  return ownerId === '' ? { scope: 'user' } : { scope: 'org', org: ownerId };
}

async function toBody(client: Client, spec: KeySpec): Promise<NewKeyBody> {
  const owner = await ownerOfNewKey(client, spec);
  return {
    name: spec.name,
    type: spec.type,
    ...defined('owner', owner === undefined ? undefined : { type: owner.type, id: owner.id }),
    ...(await commonBody(client, spec)),
  };
}

/** Returns the owner in the flags, or the owner of the first deployment if the flags name none. */
async function ownerOfNewKey(
  client: Client,
  { owner, deployments = [] }: KeySpec,
): Promise<OwnerReference | undefined> {
  if (deployments.length > 0 && owner === DEFAULT_OWNER) return (await findDeployment(client, deployments[0])).owner;
  return 'id' in owner ? owner : ownerReference(client, owner);
}

async function toEdit(client: Client, edit: KeyEdit): Promise<KeyEditBody> {
  return { ...defined('name', edit.name), ...defined('type', edit.type), ...(await commonBody(client, edit)) };
}

async function commonBody(
  client: Client,
  { deployments, expiresAt, limits, allowedCidrs, budget }: Partial<KeySpec>,
): Promise<Pick<KeyEditBody, 'deployments' | 'expires_at' | 'limits' | 'allowed_cidrs' | 'budget'>> {
  const ids =
    deployments === undefined
      ? undefined
      : await Promise.all(deployments.map(async (name) => (await findDeployment(client, name)).id));
  return {
    ...defined('deployments', ids),
    ...defined('expires_at', expiresAt === undefined ? undefined : toTimestamp(expiresAt)),
    ...defined('limits', limits),
    ...defined('allowed_cidrs', allowedCidrs && [...allowedCidrs]),
    ...defined('budget', budget),
  };
}

/** Returns undefined for the caller's own account. */
function ownerReference(client: Client, owner: OwnerName): Promise<OwnerReference | undefined> {
  if (owner === DEFAULT_OWNER || (owner.type === 'user' && owner.name === 'me')) return Promise.resolve(undefined);
  if (owner.type === 'user')
    throw new AccessError('invalid_argument', '--owner: expected org:SLUG with --url, or no --owner for your own keys');
  return findOwner(client, `org:${owner.name}`);
}

function toNewKey(made: MadeKey): NewKey {
  return { key: toApiKey(made), secret: made.secret ?? '', secretVersion: 0 };
}

function toApiKey(key: Key): ApiKey {
  return {
    id: key.id,
    publicId: key.public_id,
    owner: key.owner,
    name: key.name,
    type: key.type,
    deployments: key.deployments,
    display: key.display,
    state: key.state,
    expiresAt: toMs(key.expires_at),
    rotatingUntil: toMs(key.rotating_until),
    limits: key.limits,
    allowedCidrs: key.allowed_cidrs,
    budget:
      key.budget === null
        ? null
        : {
            tokens: key.budget.tokens,
            period: key.budget.period,
            used: key.budget.used,
            resetsAt: toMs(key.budget.resets_at),
          },
    createdBy: key.created_by,
    createdAt: Date.parse(key.created_at),
    updatedAt: Date.parse(key.updated_at),
    lastUsedAt: toMs(key.last_used_at),
    lastUsedIp: key.last_used_ip,
    rev: key.rev,
  };
}

function toMs(text: string | null): number | null {
  return text === null ? null : Date.parse(text);
}

function toTimestamp(ms: number | null): string | null {
  return ms === null ? null : new Date(ms).toISOString();
}
