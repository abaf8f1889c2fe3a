import { input, oneOf, orNull, page } from './json-schema';
import { Capacity, DataSource, OwnerReference } from './objects';
import { pageOf, PAGING } from './paging';
import { type ApiRoute, defineRoute } from './route';

const TAG = 'data';
const PATH = '/api/v1/data-sources';

const NewDataSource = input({
  name: { type: 'string', minLength: 1, maxLength: 100 }, type: oneOf(['dataset', 'model', 'workspace', 'upload']),
  path: { type: 'string', minLength: 1, maxLength: 4_096, description: 'A folder of the service’s machine, inside one of its data roots; a relative one is inside the first' },
  owner: OwnerReference, visibility: oneOf(['private', 'org', 'public']), size_bytes: orNull({ type: 'integer', minimum: 0 }),
}, 'name', 'type', 'path');

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET', path: PATH, summary: 'Folders that deployments and containers can be bound to', tag: TAG, auth: 'any', query: input(PAGING), answers: { 200: page(DataSource) },
    handle: async ({ context: { store }, actor, query }) => ({ status: 200, body: pageOf(await store.listDataSources(actor), query, ({ id }) => id) }),
  }),
  defineRoute({
    method: 'POST', path: PATH, summary: 'Offer a folder of the service’s machine (administrators)', tag: TAG, auth: 'any', body: NewDataSource, answers: { 201: DataSource }, problems: ['conflict'],
    handle: async ({ context: { store }, actor, body }) => {
      const made = await store.createDataSource(actor, body);
      return { status: 201, body: made, headers: { Location: `${PATH}/${made.id}` } };
    },
  }),
  defineRoute({
    method: 'DELETE', path: `${PATH}/{id}`, summary: 'Forget a data source: its folder stays', tag: TAG, auth: 'any', answers: { 204: null }, problems: ['conflict'],
    handle: async ({ context: { store }, actor, params }) => {
      await store.deleteDataSource(actor, params.id);
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'GET', path: '/api/v1/compute', summary: 'The machine: what there is, what of it is free, and how deployments are kept apart', tag: 'compute', auth: 'any', answers: { 200: Capacity },
    handle: async ({ context: { store }, actor }) => ({ status: 200, body: await store.readCapacity(actor) }),
  }),
];
