import { previewPull } from '../../deployments/pull-preview';
import { CapstanError } from 'capstan/internal';
import { DataPullAgain, DataPullPreview, DataPullQuestion, DataSource, NewDataPull } from '../objects';
import { ApiProblem } from '../problem';
import { type ApiRoute, defineRoute } from '../route';

const TAG = 'data';
const SOURCES = '/api/v1/data-sources';
const PULLS = '/api/v1/data-pulls';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'POST',
    path: PULLS,
    summary: 'Create a data source with a model from the hub. The service downloads it in the background',
    tag: TAG,
    auth: 'any',
    body: NewDataPull,
    responses: { 201: DataSource },
    problems: ['conflict', 'quota_exceeded'],
    handle: async ({ context: { store, puller }, actor, body }) => {
      const created = await store.createPull(actor, body);
      puller?.notify();
      return { status: 201, body: created, headers: { Location: `${SOURCES}/${created.id}` } };
    },
  }),
  defineRoute({
    method: 'POST',
    path: `${PULLS}/preview`,
    summary: 'Show what a pull would download, and whether the model fits. Nothing is stored',
    tag: TAG,
    auth: 'any',
    body: DataPullQuestion,
    responses: { 200: DataPullPreview },
    problems: ['hub_error'],
    handle: async ({ context: { store, dataRoots = [] }, actor, body, signal }) => {
      const access = await store.readPreviewAccess(actor, body);
      return { status: 200, body: await previewPull({ ...body, ...access }, dataRoots, signal).catch(explain) };
    },
  }),
  defineRoute({
    method: 'POST',
    path: `${SOURCES}/{id}/pull`,
    summary: 'Pull into a data source of the hub again: after a failure, for the newest commit, or another model',
    tag: TAG,
    auth: 'any',
    body: DataPullAgain,
    isBodyOptional: true,
    responses: { 202: DataSource },
    problems: ['conflict', 'busy'],
    handle: async ({ context: { store, puller }, actor, params: { id }, body }) => {
      const source = await store.pullAgain(actor, id, body);
      puller?.notify();
      return { status: 202, body: source };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${SOURCES}/{id}/pull`,
    summary: 'Cancel the download of a data source. What was downloaded is kept for the next pull',
    tag: TAG,
    auth: 'any',
    responses: { 200: DataSource },
    problems: ['conflict', 'wrong_state'],
    handle: async ({ context: { store, puller }, actor, params: { id } }) => {
      const source = await store.cancelPull(actor, id);
      puller?.cancel(id);
      return { status: 200, body: source };
    },
  }),
];

/** Turns an error of the hub into a problem. Its message says what to do. */
function explain(error: unknown): never {
  if (!(error instanceof CapstanError) || error.code === 'aborted') throw error;
  const { code, message } = error;
  if (code === 'model_not_found' || code === 'access_denied' || code === 'invalid_argument')
    throw new ApiProblem('invalid_argument', message, { errors: [{ pointer: '/model', message }] });
  throw new ApiProblem('hub_error', message, { cause: error });
}
