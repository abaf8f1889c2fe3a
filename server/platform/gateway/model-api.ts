import {
  type Access,
  type AccessOutcome,
  ApiError,
  type Denied,
  type Granted,
  type HttpReply,
  type Identity,
  type Reservation,
  anthropicModel,
  anthropicModelPage,
  isAnthropicRequest,
  isModelsPath,
  mayCall,
  MODELS_PATH,
  RecordedReply,
  type StreamedRequest,
  withBearerKey,
} from 'capstan/internal';
import { type DeploymentAddress, isInference, isModelRoute } from './address';
import { eitherOf } from './either-of';
import { ModelBodies, type ModelBody } from './model-body';
import type { OwnerStorage } from './owner-storage';
import { namesOf, type NamedModel, type Target, type Targets } from './targets';

const READING = new Set(['GET', 'HEAD']);

/** A request whose deployment and key have been found. */
export interface ModelRequest {
  address: DeploymentAddress;
  /** Absent for a request without a body. */
  model?: RequestedModel;
}

/** What a request body names as its model. */
export interface RequestedModel {
  /** As sent by the client. */
  readonly requested: string;
  /** The model within the deployment. undefined: the replica's first model. */
  readonly inner: string | undefined;
  readonly body: ModelBody;
}

/** Where the gateway keeps what is known of a request, for its record. */
interface RequestFacts {
  readonly request: StreamedRequest;
  readonly requestId: string;
  readonly access: Pick<Access, 'identify'>;
  target: Target | undefined;
  grant: Granted | undefined;
  /** The gateway releases it. */
  reservation: Reservation | undefined;
  /** The gateway closes it. */
  body: ModelBody | undefined;
}

/**
 * The API over all deployments of a key's owner: each request names its deployment in the field `model`. It always
 * needs a key, even for public deployments.
 */
export class ModelApi {
  readonly #targets: Targets;
  readonly #storage: OwnerStorage | undefined;
  readonly #bodies = new ModelBodies();

  constructor({ targets, storage }: { targets: Targets; storage?: OwnerStorage | undefined }) {
    this.#targets = targets;
    this.#storage = storage;
  }

  /**
   * Finds the deployment of a request. Answers requests for the list of models, and for what is kept for the owner,
   * itself and returns undefined. Throws ApiError.
   * @param headers CORS headers of the list.
   */
  async route(
    facts: RequestFacts,
    reply: HttpReply,
    headers: Readonly<Record<string, string>>,
  ): Promise<ModelRequest | undefined> {
    const { request, requestId } = facts;
    // Anthropic's clients send the key in x-api-key.
    const { path, headers: sent } = request;
    const isAnthropic = isAnthropicRequest(path, sent);
    const keyed = isAnthropic ? { ...request, headers: withBearerKey(sent) } : request;
    const identity = admitted(await facts.access.identify(keyed));
    if (isModelsPath(path)) {
      if (!READING.has(request.method)) throw wrongMethod('GET, HEAD, OPTIONS');
      if (path !== MODELS_PATH) return this.#describe(facts, identity, reply, headers);
      const data = this.#list(identity);
      const list = isAnthropic ? anthropicModelPage(data, request.query) : { object: 'list', data };
      return sendJson(reply, request, headers, list);
    }
    if (this.#storage?.serves(request.method, request.path) === true) {
      if (!READING.has(request.method)) facts.reservation = admitted(identity.reserve());
      const { keyId, ownerId, reach } = identity;
      const watch = identity.watch();
      try {
        return void (await this.#storage.handle(
          { requestId, keyId, ownerId, deploymentId: undefined, reach },
          { ...request, signal: eitherOf(request.signal, watch.signal) },
          new RecordedReply(reply, headers),
        ));
      } finally {
        watch.done();
      }
    }
    if (!isInference(path)) throw unknownPath(path);
    if (request.method !== 'POST') throw isModelRoute(path) ? wrongMethod('POST, OPTIONS') : unknownPath(path);
    // Before the body, so that the limits of a key hold for bodies that arrive slowly.
    const reservation = (facts.reservation = admitted(identity.reserve()));
    const body = (facts.body = await this.#bodies.read(request, identity.ownerId).catch((error: unknown) => {
      throw !isModelRoute(path) && namesNoModel(error) ? unknownPath(path) : error;
    }));
    const requested = body.field.value;
    const named = this.#find(identity, requested);
    this.#admit(facts, reservation, named.target);
    return { address: addressOf(named.target, request.path), model: { requested, inner: named.inner, body } };
  }

  #list(identity: Identity): DescribedModel[] {
    return this.#targets
      .deployments()
      .filter(
        ({ ownerId, state, deploymentId }) =>
          ownerId === identity.ownerId && state !== 'deleting' && mayCall(identity.reach, deploymentId),
      )
      .flatMap((target) => namesOf(target).map((name) => describe(target, name)));
  }

  /** A model within a deployment is described by the deployment. */
  #describe(
    facts: RequestFacts,
    identity: Identity,
    reply: HttpReply,
    headers: Readonly<Record<string, string>>,
  ): ModelRequest | undefined {
    const { request } = facts;
    const name = decoded(request.path.slice(MODELS_PATH.length + 1));
    const { target, inner } = this.#find(identity, name);
    if (inner === undefined) {
      if (!mayCall(identity.reach, target.deploymentId)) this.#admit(facts, identity, target);
      const model = describe(target, name);
      const isAnthropic = isAnthropicRequest(request.path, request.headers);
      return sendJson(reply, request, headers, isAnthropic ? anthropicModel(model) : model);
    }
    this.#admit(facts, identity, target);
    return { address: addressOf(target, `${MODELS_PATH}/${inner.split('/').map(encodeURIComponent).join('/')}`) };
  }

  #find({ ownerId }: Identity, model: string): NamedModel {
    const named = this.#targets.findByModel(ownerId, model);
    // The same error for names of other owners: it does not show whether they exist.
    if (named === undefined || named.target.state === 'deleting')
      throw new ApiError(
        'model_not_found',
        `model: expected the name or an alias of a deployment, or NAME/MODEL, got ${JSON.stringify(model.slice(0, 100))}. GET ${MODELS_PATH} lists the names`,
        { param: 'model' },
      );
    return named;
  }

  #admit(facts: RequestFacts, identity: Pick<Identity, 'admit'>, target: Target): void {
    facts.target = target;
    facts.grant = admitted(identity.admit({ id: target.deploymentId, ownerId: target.ownerId }));
  }
}

function addressOf({ slug }: Target, path: string): DeploymentAddress {
  return { slug, path, prefix: '', isApi: true };
}

interface DescribedModel {
  id: string;
  object: 'model';
  created: number;
  owned_by: string;
  root: string | null;
  parent: string | null;
}

function describe(target: Target, name: string): DescribedModel {
  return {
    id: name,
    object: 'model',
    created: Math.floor(target.createdMs / 1000),
    owned_by: 'capstan',
    // As vLLM shows the model behind a name.
    root: target.name,
    parent: name === target.name ? null : target.name,
  };
}

function admitted(outcome: Identity | Denied): Identity;
function admitted(outcome: Reservation | Denied): Reservation;
function admitted(outcome: AccessOutcome): Granted;
function admitted<T extends { ok: true }>(outcome: T | Denied): T {
  if (!outcome.ok) throw new ApiError(outcome.code, outcome.message, { headers: { ...outcome.headers } });
  return outcome;
}

function sendJson(
  reply: HttpReply,
  request: StreamedRequest,
  headers: Readonly<Record<string, string>>,
  value: object,
): undefined {
  const body = Buffer.from(JSON.stringify(value));
  const all = { ...headers, 'Content-Type': 'application/json', 'Cache-Control': 'no-store' };
  if (request.method === 'HEAD') reply.send(200, { ...all, 'Content-Length': String(body.length) }, null);
  else reply.send(200, all, body);
}

function unknownPath(path: string): ApiError {
  return new ApiError(
    'unknown_url',
    `There is no ${path.slice(0, 100)} in the API of all deployments. ` +
      'For a path that one deployment has, send POST with a JSON body and its field model',
  );
}

function namesNoModel(error: unknown): boolean {
  return error instanceof ApiError && ['missing_required_parameter', 'unsupported_media_type'].includes(error.code);
}

function wrongMethod(allowed: string): ApiError {
  return new ApiError(
    'method_not_allowed',
    `The API of all deployments expects ${allowed} here. Send other methods to the URL of the deployment`,
    { headers: { Allow: allowed } },
  );
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
