import { checkText } from 'capstan/internal';
import { parseEndpointUrl } from '../outbound/endpoint';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { UPSTREAM_INTERFACES, type UpstreamInterface } from '../gateway/upstreams/interfaces';
import type { UpstreamRow } from './upstream-schema';

/** An upstream server that a deployment forwards to, in its newest version. */
export interface UpstreamRecord {
  number: number;
  /** The base URL that clients would use, without a trailing slash: `https://api.example.com/v1`. */
  url: string;
  /** Encrypted. null: requests carry no key. */
  secret: string | null;
  /** The only model that requests get. null: the one that the request names. */
  model: string | null;
  interfaces: UpstreamInterface[];
}

/** As users see it. The secret is never shown. */
export interface UpstreamView {
  version: number;
  url: string;
  model: string | null;
  interfaces: UpstreamInterface[];
  has_secret: boolean;
}

/** Missing fields keep their value. */
export interface UpstreamEdit {
  url?: string;
  secret?: string | null;
  model?: string | null;
  interfaces?: readonly UpstreamInterface[];
  /** Restores an earlier version, with its secret. Excludes the other fields. */
  version?: number;
}

export interface NewUpstream {
  url: string;
  secret?: string | null;
  model?: string | null;
  interfaces?: readonly UpstreamInterface[];
}

/** Versions that are kept. */
const MAX_VERSIONS = 50;
const MAX_SECRET_LENGTH = 1_000;
const MAX_MODEL_LENGTH = 200;
/** What may stand in a header without ambiguity. */
const SECRET = /^[\x21-\x7e]+$/;

export function upstreamView(record: UpstreamRecord | undefined): UpstreamView | null {
  if (record === undefined) return null;
  const { number: version, url, model, interfaces, secret } = record;
  return { version, url, model, interfaces, has_secret: secret !== null };
}

/** Returns the newest versions of upstreams by the ids of their deployments. */
export async function upstreamsOf(
  db: ServiceDb | ServiceTx,
  ids: readonly string[],
): Promise<Map<string, UpstreamRecord>> {
  if (ids.length === 0) return new Map();
  const rows = await db
    .selectFrom('deployment_upstreams')
    .selectAll()
    .where('deployment_id', 'in', ids)
    .orderBy('number')
    .execute();
  return new Map(rows.map((row) => [row.deployment_id, toUpstreamRecord(row)]));
}

/** Saves a new version with the fields of `edit`. @throws ServiceError, AccessError */
export async function writeUpstream(
  { box }: Pick<StoreContext, 'box'>,
  tx: ServiceTx,
  deploymentId: string,
  before: UpstreamRecord | undefined,
  edit: UpstreamEdit,
  by: { userId: string; nowMs: number },
): Promise<void> {
  const { version, ...fields } = edit;
  if (version !== undefined && Object.values(fields).some((value) => value !== undefined))
    throw new ServiceError('invalid_argument', 'upstream.version: expected no other fields beside it');
  const next =
    version === undefined
      ? changed(box, deploymentId, before, fields)
      : await demandVersion(tx, deploymentId, version, before);
  const number = (before?.number ?? 0) + 1;
  await tx
    .insertInto('deployment_upstreams')
    .values({
      deployment_id: deploymentId,
      number,
      url: next.url,
      secret: next.secret,
      model: next.model,
      interfaces: next.interfaces.join(','),
      created_at: by.nowMs,
      created_by: by.userId,
    })
    .execute();
  await tx
    .deleteFrom('deployment_upstreams')
    .where('deployment_id', '=', deploymentId)
    .where('number', '<=', number - MAX_VERSIONS)
    .execute();
}

/** Returns the decrypted secret, empty without one. */
export function openUpstreamSecret(
  { box }: Pick<StoreContext, 'box'>,
  deploymentId: string,
  { secret }: Pick<UpstreamRecord, 'secret'>,
): string {
  return secret === null ? '' : box.open(secret, purposeOf(deploymentId));
}

type Fields = Omit<UpstreamRecord, 'number'>;

function changed(
  box: StoreContext['box'],
  deploymentId: string,
  before: UpstreamRecord | undefined,
  edit: Omit<UpstreamEdit, 'version'>,
): Fields {
  const url = edit.url === undefined ? before?.url : checkUrl(edit.url);
  if (url === undefined) throw new ServiceError('invalid_argument', 'upstream.url: expected the base URL of a server');
  const isMoved = before !== undefined && new URL(url).origin !== new URL(before.url).origin;
  if (isMoved && before.secret !== null && edit.secret === undefined)
    throw new ServiceError(
      'invalid_argument',
      'upstream.secret: expected the secret of the new host, or null. The secret of the old host is not sent to another one',
    );
  return {
    url,
    secret: edit.secret === undefined ? (before?.secret ?? null) : sealed(box, deploymentId, edit.secret),
    model: edit.model === undefined ? (before?.model ?? null) : checkModelName(edit.model),
    interfaces: edit.interfaces === undefined ? (before?.interfaces ?? ['chat']) : checkInterfaces(edit.interfaces),
  };
}

async function demandVersion(
  tx: ServiceTx,
  deploymentId: string,
  number: number,
  before: UpstreamRecord | undefined,
): Promise<Fields> {
  const row = await tx
    .selectFrom('deployment_upstreams')
    .selectAll()
    .where('deployment_id', '=', deploymentId)
    .where('number', '=', number)
    .executeTakeFirst();
  if (row === undefined || number === before?.number)
    throw new ServiceError(
      'invalid_argument',
      `upstream.version: expected the number of an earlier version, got ${number}`,
    );
  return toUpstreamRecord(row);
}

export function toUpstreamRecord({ number, url, secret, model, interfaces }: UpstreamRow): UpstreamRecord {
  return { number, url, secret, model, interfaces: interfaces.split(',') as UpstreamInterface[] };
}

/** A URL without a path gets `/v1`, as most providers have it. */
function checkUrl(text: string): string {
  const url = parseEndpointUrl(text, 'upstream.url');
  if (url.search !== '') throw new ServiceError('invalid_argument', 'upstream.url: expected a URL without a query');
  if (/[;%]|\/\//.test(url.pathname))
    throw new ServiceError('invalid_argument', 'upstream.url: expected a plain path such as /v1');
  const path = url.pathname.replace(/\/+$/, '');
  return `${url.origin}${path === '' ? '/v1' : path}`;
}

function checkInterfaces(names: readonly UpstreamInterface[]): UpstreamInterface[] {
  if (!names.includes('chat') && !names.includes('messages'))
    throw new ServiceError(
      'invalid_argument',
      `upstream.interfaces: expected chat or messages among them, got ${names.join(', ') || 'none'}. Requests are converted to one of the two`,
    );
  return UPSTREAM_INTERFACES.filter((name) => names.includes(name));
}

function sealed(box: StoreContext['box'], deploymentId: string, secret: string | null): string | null {
  if (secret === null) return null;
  if (secret.length > MAX_SECRET_LENGTH || !SECRET.test(secret))
    throw new ServiceError(
      'invalid_argument',
      `upstream.secret: expected 1 to ${MAX_SECRET_LENGTH} visible ASCII characters`,
    );
  return box.seal(secret, purposeOf(deploymentId));
}

function checkModelName(model: string | null): string | null {
  return model === null ? null : checkText('upstream.model', model, MAX_MODEL_LENGTH);
}

function purposeOf(deploymentId: string): string {
  return `upstream ${deploymentId}`;
}
