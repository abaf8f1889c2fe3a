import { input, page } from './json-schema';
import { Capacity, DataSource, DataSourceDetails, DataSourceEdit, NewDataSource } from './objects';
import { pageOf, pagingById } from './paging';
import { type ApiRoute, defineRoute } from './route';

const TAG = 'data';
const PATH = '/api/v1/data-sources';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'Folders that deployments and containers can be bound to',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('src')),
    answers: { 200: page(DataSource) },
    handle: async ({ context: { store }, actor, query }) => ({
      status: 200,
      body: pageOf(await store.listDataSources(actor), query, ({ id }) => id),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Offer a folder of the service’s machine (administrators); it is measured by and by',
    tag: TAG,
    auth: 'any',
    body: NewDataSource,
    answers: { 201: DataSource },
    problems: ['conflict'],
    handle: async ({ context: { store, measurer }, actor, body }) => {
      const made = await store.createDataSource(actor, body);
      measurer?.poke();
      return { status: 201, body: made, headers: { Location: `${PATH}/${made.id}` } };
    },
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}`,
    summary: 'A data source, and what is bound to it',
    tag: TAG,
    auth: 'any',
    answers: { 200: DataSourceDetails },
    handle: async ({ context: { store }, actor, params: { id } }) => ({
      status: 200,
      body: await store.getDataSource(actor, id),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{id}`,
    summary: 'Change a data source (administrators); its folder only while nothing is bound to it',
    tag: TAG,
    auth: 'any',
    body: DataSourceEdit,
    answers: { 200: DataSource },
    problems: ['conflict', 'stale'],
    handle: async ({ context: { store, measurer }, actor, params: { id }, body, ifMatch }) => {
      const changed = await store.editDataSource(actor, id, body, ifMatch);
      // Of a folder that it was before nobody wants to know any more.
      if (body.path !== undefined && changed.measurement.state === 'pending') {
        measurer?.cancel(id);
        measurer?.poke();
      }
      return { status: 200, body: changed };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'Forget a data source that nothing is bound to: its folder stays',
    tag: TAG,
    auth: 'any',
    answers: { 204: null },
    problems: ['conflict'],
    handle: async ({ context: { store, measurer }, actor, params: { id } }) => {
      await store.deleteDataSource(actor, id);
      measurer?.cancel(id);
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{id}/measurement`,
    summary: 'Measure a data source anew: its size and the digest of its contents (administrators)',
    tag: TAG,
    auth: 'any',
    answers: { 202: DataSource },
    handle: async ({ context: { store, measurer }, actor, params: { id } }) => {
      const source = await store.wishMeasure(actor, id, 'pending');
      measurer?.poke();
      return { status: 202, body: source };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}/measurement`,
    summary: 'Measure a data source no further (administrators)',
    tag: TAG,
    auth: 'any',
    answers: { 200: DataSource },
    problems: ['wrong_state'],
    handle: async ({ context: { store, measurer }, actor, params: { id } }) => {
      const source = await store.wishMeasure(actor, id, 'cancelled');
      measurer?.cancel(id);
      return { status: 200, body: source };
    },
  }),
  defineRoute({
    method: 'GET',
    path: '/api/v1/compute',
    summary: 'The machine: what there is, what of it is free, and how deployments are kept apart',
    tag: 'compute',
    auth: 'any',
    answers: { 200: Capacity },
    handle: async ({ context: { store }, actor }) => ({ status: 200, body: await store.readCapacity(actor) }),
  }),
];
