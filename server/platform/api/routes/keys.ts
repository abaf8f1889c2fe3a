import { isKeyCursor, KEY_SORTS } from 'capstan/internal';
import { changeOptions } from '../../accounts/actor';
import { CONFIRMATION, requireConfirmation } from '../confirm';
import { input, oneOf, page } from '../json-schema';
import { authorizeKey, filterOf, keyView, placeOf } from './key-access';
import { ChangedKey, Key, KeyEdit, KeyUsage, MadeKey, NewKey, Rotation } from '../objects';
import { badCursor, paging } from '../paging';
import { propagationOf } from './propagation';
import { type ApiRoute, defineRoute } from '../route';
import { msOf } from '../times';

const TAG = 'keys';
const PATH = '/api/v1/keys';
const DAY_MS = 86_400_000;
const USAGE_DAYS = 30;

const SCOPE = {
  scope: {
    ...oneOf(['user', 'org', 'deployment']),
    description: 'Default: `deployment` or `org` if that parameter is present, else `user`',
  },
  org: { type: 'string', maxLength: 100, description: 'Organization, for the scope `org`' },
  deployment: { type: 'string', maxLength: 100, description: 'Deployment, for the scope `deployment`' },
} as const;
const ORDER = {
  ...paging('^[0-9A-Za-z_-]+$'),
  q: { type: 'string', maxLength: 100, description: 'Part of the name' },
  sort: { ...oneOf(KEY_SORTS), default: 'created' },
  order: { ...oneOf(['asc', 'desc']), default: 'asc' },
} as const;

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List the keys of your account, of an organization or of a deployment',
    tag: TAG,
    auth: 'any',
    query: input({ ...SCOPE, ...ORDER, include_deleted: { type: 'boolean', default: false } }),
    responses: { 200: page(Key) },
    handle: async (call) => {
      const { limit, after, q: search, sort, order, include_deleted: includeDeleted } = call.query;
      if (after !== undefined && !isKeyCursor(after, sort, order === 'desc')) throw badCursor();
      const filter = { ...(await filterOf(call, call.query)), search, includeDeleted };
      const { data, next } = await call.context.store.pageKeys(filter, {
        limit,
        after,
        sort,
        descending: order === 'desc',
      });
      return { status: 200, body: { data: data.map(keyView), next } };
    },
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Create a key. The secret is shown once',
    tag: TAG,
    auth: 'any',
    query: input(SCOPE),
    body: NewKey,
    secrets: ['secret'],
    responses: { 201: MadeKey },
    problems: ['not_found', 'conflict', 'quota_exceeded'],
    handle: async (call) => {
      const {
        context: { access },
        actor,
        body,
      } = call;
      const place = await placeOf(call, call.query, body);
      const { key, secret } = await access.createKey(
        {
          ...place,
          name: body.name,
          expiresAt: msOf(body.expires_at),
          limits: body.limits,
          allowedCidrs: body.allowed_cidrs,
          budget: body.budget,
        },
        changeOptions(actor),
      );
      return {
        status: 201,
        body: { ...keyView(key), propagation: await propagationOf(access, key.rev), secret },
        headers: { Location: `${PATH}/${key.id}` },
      };
    },
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}`,
    summary: 'Get a key, without its secret',
    tag: TAG,
    auth: 'any',
    responses: { 200: Key },
    handle: async (call) => ({ status: 200, body: keyView(await authorizeKey(call, 'read')) }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{id}`,
    summary: 'Update a key. Omitted fields keep their values',
    tag: TAG,
    auth: 'any',
    body: KeyEdit,
    needsIfMatch: true,
    responses: { 200: ChangedKey },
    problems: ['conflict'],
    handle: async (call) => {
      const {
        context: { access },
        actor,
        body: { disabled, expires_at: expiresAt, allowed_cidrs: allowedCidrs, ...rest },
        ifMatch,
      } = call;
      let key = await authorizeKey(call, disabled === undefined ? 'edit' : 'end');
      const edit = { ...rest, expiresAt: msOf(expiresAt), allowedCidrs };
      const isEdited = Object.values(edit).some((value) => value !== undefined);
      if (isEdited || disabled === undefined) key = await access.editKey(key.id, edit, changeOptions(actor, ifMatch));
      if (disabled !== undefined)
        key = await access.setKeyEnabled(key.id, !disabled, changeOptions(actor, isEdited ? key.rev : ifMatch));
      return changed(access, key);
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'Delete a key',
    tag: TAG,
    auth: 'any',
    query: CONFIRMATION,
    responses: { 200: ChangedKey },
    problems: ['stale', 'invalid_argument'],
    handle: async (call) => {
      const {
        context: { access },
        actor,
        query,
        ifMatch,
      } = call;
      const { id, name } = await authorizeKey(call, 'end');
      requireConfirmation(query, 'name', name);
      return changed(access, await access.deleteKey(id, changeOptions(actor, ifMatch)));
    },
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{id}/rotate`,
    summary: 'Rotate a key. The new secret is shown once; the old one stays valid for grace_s',
    tag: TAG,
    auth: 'any',
    body: Rotation,
    isBodyOptional: true,
    secrets: ['secret'],
    responses: { 200: MadeKey },
    problems: ['conflict', 'stale'],
    handle: async (call) => {
      const {
        context: { access },
        actor,
        body,
        ifMatch,
      } = call;
      const { id } = await authorizeKey(call, 'end');
      const { key, secret } = await access.rotateKey(id, (body.grace_s ?? 0) * 1000, changeOptions(actor, ifMatch));
      return { status: 200, body: { ...keyView(key), propagation: await propagationOf(access, key.rev), secret } };
    },
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{id}/rotate/finish`,
    summary: 'End the grace period of a rotation',
    tag: TAG,
    auth: 'any',
    body: input({}),
    isBodyOptional: true,
    responses: { 200: ChangedKey },
    problems: ['stale'],
    handle: async (call) => {
      const {
        context: { access },
        actor,
        ifMatch,
      } = call;
      const { id } = await authorizeKey(call, 'end');
      return changed(access, await access.finishRotation(id, changeOptions(actor, ifMatch)));
    },
  }),
  ...(['enable', 'disable'] as const).map((verb) =>
    defineRoute({
      method: 'POST',
      path: `${PATH}/{id}/${verb}`,
      summary: verb === 'enable' ? 'Enable a key' : 'Disable a key until it is enabled again',
      tag: TAG,
      auth: 'any',
      body: input({}),
      isBodyOptional: true,
      responses: { 200: ChangedKey },
      problems: ['stale'],
      handle: async (call) => {
        const {
          context: { access },
          actor,
          ifMatch,
        } = call;
        const { id } = await authorizeKey(call, 'end');
        return changed(access, await access.setKeyEnabled(id, verb === 'enable', changeOptions(actor, ifMatch)));
      },
    }),
  ),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}/usage`,
    summary: 'List the usage of a key by UTC day, oldest first',
    tag: TAG,
    auth: 'any',
    query: input({ from: { type: 'string', format: 'date-time' } }),
    responses: { 200: KeyUsage },
    handle: async (call) => {
      const {
        context: { store, now },
        query,
      } = call;
      const { id } = await authorizeKey(call, 'read');
      const usage = await store.readUsage(id, msOf(query.from) ?? now() - USAGE_DAYS * DAY_MS);
      return {
        status: 200,
        body: {
          data: usage.map(({ day, requests, tokens }) => ({
            day: new Date(day * DAY_MS).toISOString().slice(0, 10),
            requests,
            tokens,
          })),
        },
      };
    },
  }),
];

async function changed(
  access: Parameters<typeof propagationOf>[0],
  key: Parameters<typeof keyView>[0],
): Promise<{ status: number; body: ChangedKey }> {
  return { status: 200, body: { ...keyView(key), propagation: await propagationOf(access, key.rev) } };
}
