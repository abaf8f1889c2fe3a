/** Where a request finds its model. */
import type { Engine } from '../../../ts';
import { errorStyleOf } from '../../base/error-styles';
import { toApiError } from '../../base/to-api-error';
import type { HttpReply, HttpRequest } from '../../http/transport';
import type { ServerContext } from '../openai/context';
import { checkJson } from '../../http/check-json';
import type { ModelRoute } from '../openai/routes';
import { checkTask } from '../openai/tasks';
import { tracedEngine } from '../traced-engine';
import type { Lease } from './model-pool';
import type { ModelEntry } from './served-models';
import { WaitingReply } from './waiting-reply';
import { readWantedModel } from './wanted-model';

/**
 * Handles a request with the engine of the model that its body names. The model stays loaded until the handler ends. If
 * there is one model and it is loaded, the body is not read before the handler. A handler that finds the adapter of the
 * request asks `context.model`.
 */
export async function withModel(
  route: ModelRoute,
  context: ServerContext,
  request: HttpRequest,
  reply: HttpReply,
): Promise<void> {
  const { only } = context.models;
  const lease = only === undefined ? undefined : context.models.tryAcquire(only);
  if (lease !== undefined) return handle(route, context, only!, lease, request, reply);
  checkJson(request);
  const body = await request.readBody();
  const { model, isStream } = await readWantedModel(body);
  const entry = context.models.find(model);
  // A request that the model cannot handle does not load it.
  checkTask(entry.served.task, route.tasks, route.path);
  const again = { ...request, readBody: () => Promise.resolve(body) };
  const loaded = context.models.tryAcquire(entry);
  if (loaded !== undefined) return handle(route, context, entry, loaded, again, reply);
  const acquire = (): Promise<Lease<Engine>> => context.models.acquire(entry, context.signal, body.byteLength);
  if (!isStream) return handle(route, context, entry, await acquire(), again, reply);
  await handleAfterPings(route, context, entry, acquire, again, reply);
}

async function handle(
  route: ModelRoute,
  context: ServerContext,
  { served, settings = context.settings }: ModelEntry,
  { engine, release }: Lease<Engine>,
  request: HttpRequest,
  reply: HttpReply,
): Promise<void> {
  try {
    checkTask(served.task, route.tasks, route.path);
    context.trace?.nameModel(served.names[0]);
    const called = context.trace === undefined ? engine : tracedEngine(engine, context.trace);
    await route.handle({ ...context, settings, engine: called, model: served }, request, reply);
  } finally {
    release();
  }
}

/** A stream sends comments until its model is loaded. An error after the first comment is an event. */
async function handleAfterPings(
  route: ModelRoute,
  context: ServerContext,
  entry: ModelEntry,
  acquire: () => Promise<Lease<Engine>>,
  request: HttpRequest,
  reply: HttpReply,
): Promise<void> {
  const waiting = new WaitingReply(reply, context.sse.pingIntervalMs, errorStyleOf(request.path));
  try {
    const lease = await acquire().finally(() => waiting.stopPings());
    await handle(route, context, entry, lease, request, waiting);
  } catch (error) {
    if (!waiting.hasPinged || request.signal.aborted) throw error;
    const apiError = toApiError(error);
    if (apiError.status === 500)
      context.log.error({ requestId: context.requestId, err: apiError.cause ?? apiError }, 'a stream ended early');
    waiting.fail(apiError, context.requestId);
  }
}
