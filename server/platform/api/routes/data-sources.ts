import { input, page } from '../json-schema';
import { Capacity, DataSource, DataSourceDetails, DataSourceEdit, NewDataSource } from '../objects';
import { pageOf, pagingById } from '../paging';
import { type ApiRoute, defineRoute } from '../route';

const TAG = 'data';
const PATH = '/api/v1/data-sources';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List the data sources that deployments and containers can use',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('src')),
    responses: { 200: page(DataSource) },
    handle: async ({ context: { store }, actor, query }) => ({
      status: 200,
      body: pageOf(await store.listDataSources(actor), query, ({ id }) => id),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Create a data source from a folder of the service’s machine (administrators). It is measured later',
    tag: TAG,
    auth: 'any',
    body: NewDataSource,
    responses: { 201: DataSource },
    problems: ['conflict'],
    handle: async ({ context: { store, measurer }, actor, body }) => {
      const created = await store.createDataSource(actor, body);
      measurer?.notify();
      return { status: 201, body: created, headers: { Location: `${PATH}/${created.id}` } };
    },
  }),
  defineRoute({
    method: 'GET',
    path: `${PATH}/{id}`,
    summary: 'Get a data source and its bindings',
    tag: TAG,
    auth: 'any',
    responses: { 200: DataSourceDetails },
    handle: async ({ context: { store }, actor, params: { id } }) => ({
      status: 200,
      body: await store.getDataSource(actor, id),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{id}`,
    summary: 'Update a data source (administrators). Its folder can change only while it has no bindings',
    tag: TAG,
    auth: 'any',
    body: DataSourceEdit,
    responses: { 200: DataSource },
    problems: ['conflict', 'stale'],
    handle: async ({ context: { store, measurer }, actor, params: { id }, body, ifMatch }) => {
      const changed = await store.editDataSource(actor, id, body, ifMatch);
      // The measurement of the previous folder is obsolete.
      if (body.path !== undefined && changed.measurement.state === 'pending') {
        measurer?.cancel(id);
        measurer?.notify();
      }
      return { status: 200, body: changed };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'Delete a data source without bindings. Its folder is kept, unless the service has pulled it from the hub',
    tag: TAG,
    auth: 'any',
    responses: { 204: null },
    problems: ['conflict'],
    handle: async ({ context: { store, measurer, puller }, actor, params: { id } }) => {
      const folder = await store.deleteDataSource(actor, id);
      measurer?.cancel(id);
      if (folder !== null) await puller?.remove(id, folder);
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/{id}/measurement`,
    summary: 'Measure the size and digest of a data source again (administrators)',
    tag: TAG,
    auth: 'any',
    responses: { 202: DataSource },
    handle: async ({ context: { store, measurer }, actor, params: { id } }) => {
      const source = await store.setMeasureState(actor, id, 'pending');
      measurer?.notify();
      return { status: 202, body: source };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}/measurement`,
    summary: 'Cancel the measurement of a data source (administrators)',
    tag: TAG,
    auth: 'any',
    responses: { 200: DataSource },
    problems: ['wrong_state'],
    handle: async ({ context: { store, measurer }, actor, params: { id } }) => {
      const source = await store.setMeasureState(actor, id, 'cancelled');
      measurer?.cancel(id);
      return { status: 200, body: source };
    },
  }),
  defineRoute({
    method: 'GET',
    path: '/api/v1/compute',
    summary: 'Get the machine’s resources, free capacity and isolation level',
    tag: 'compute',
    auth: 'any',
    responses: { 200: Capacity },
    handle: async ({ context: { store }, actor }) => ({ status: 200, body: await store.readCapacity(actor) }),
  }),
];
