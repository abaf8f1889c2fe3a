import { input, oneOf, page } from '../json-schema';
import { Image } from '../objects';
import { pageOf, pagingById } from '../paging';
import { type ApiRoute, defineRoute } from '../route';

const TAG = 'images';
const PATH = '/api/v1/images';
const TEXT = { type: 'string', minLength: 1, maxLength: 100 } as const;

const NewImage = input(
  {
    name: TEXT,
    version: TEXT,
    type: oneOf(['host-env', 'builtin-runtime', 'oci']),
    gpu_required: { type: 'boolean', default: false },
    default_start: { anyOf: [{ type: 'string', minLength: 1, maxLength: 65_536 }, { type: 'null' }] },
  },
  'name',
  'version',
  'type',
);

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List the images for deployments and containers',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('img')),
    responses: { 200: page(Image) },
    handle: async ({ context: { store }, query }) => ({
      status: 200,
      body: pageOf(await store.listImages(), query, ({ id }) => id),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Create an image (administrators)',
    tag: TAG,
    auth: 'any',
    body: NewImage,
    responses: { 201: Image },
    problems: ['conflict'],
    handle: async ({ context: { store }, actor, body }) => {
      const created = await store.createImage(actor, body);
      return { status: 201, body: created, headers: { Location: `${PATH}/${created.id}` } };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'Delete an image (administrators). Deployments created from it keep running',
    tag: TAG,
    auth: 'any',
    responses: { 204: null },
    problems: ['conflict'],
    handle: async ({ context: { store }, actor, params }) => {
      await store.deleteImage(actor, params.id);
      return { status: 204 };
    },
  }),
];
