import { type CidrList, header, type Log } from 'capstan/internal';
import { isRepeatable } from '../address';
import type { Balancer, Choice } from '../balancer';
import type { Billing } from '../billing';
import { billedCall, type Call, endUnusable } from '../call';
import { type FirstByteLimit, modelOf } from './fallbacks';
import { HeldBytes } from '../held-bodies';
import type { LateRequests } from './late-requests';
import { lingering } from './linger';
import type { RequestedModel } from '../model-api';
import { type Prefix, prefixOf } from '../prefix-index';
import { replicaRequest } from './replica-request';
import type { UpstreamRequest } from '../request-head';
import { ServedModels } from '../served-models';
import type { Target, Targets } from '../targets';
import { TokenMeter } from '../token-meter';
import type { UpstreamResponse } from '../upstream';
import { asApiError, UpstreamError } from '../upstream-error';
import { GatheredBodies, GatheredBody } from '../upstreams/gathered-body';
import { limitedBody } from '../upstreams/limited-body';
import type { Received } from '../upstreams/received';
import { RESPONSE_LIMITS, ResponseMemory } from '../upstreams/response-memory';
import { UnusableResponse } from '../upstreams/unusable-response';
import { UpstreamCall } from '../upstreams/upstream-call';
import type { UsageReader } from '../usage-reader';

export interface ExchangeParts {
  targets: Targets;
  balancer: Balancer;
  times: {
    idleTimeoutMs: number;
    /** How long an upstream may take to finish a response that is not streamed, when no client waits for it. */
    lingerMs: number;
  };
  scheme: 'http' | 'https';
  trustedProxies: CidrList | undefined;
  /** Absent: requests cost nothing. */
  billing?: Billing | undefined;
  late: LateRequests;
  log: Pick<Log, 'info'>;
}

/** A response, and the replica that sends it. Close it with {@link closeExchange}. */
export interface Exchanged {
  choice: Choice;
  response: UpstreamResponse;
  /** Of an upstream: reads and rewrites its response. */
  reader?: UsageReader | undefined;
}

/** Releases the replica and the memory of a response. */
export function closeExchange({ choice, reader }: Pick<Exchanged, 'choice' | 'reader'>): void {
  choice.close();
  reader?.close?.();
}

/** What all attempts of a call share. */
interface Asked {
  call: Call;
  target: Target;
  body: UpstreamRequest['body'];
  model: RequestedModel | undefined;
  /** The deployment stands in for the one that the client named. */
  isFallback: boolean;
  limit: FirstByteLimit | undefined;
  signal: AbortSignal;
  /** The body for an upstream. */
  gathered?: GatheredBody;
}

const NO_PREFIX: Prefix = [];
const SAFE_TO_REPEAT = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE']);

/** Sends requests to replicas and upstreams, and receives the heads of their responses. */
export class Exchanges {
  readonly #parts: ExchangeParts;
  readonly #served: ServedModels;
  readonly #upstreamBodies = new GatheredBodies();
  readonly #responseBytes = new HeldBytes(RESPONSE_LIMITS);

  constructor(parts: ExchangeParts) {
    this.#parts = parts;
    this.#served = new ServedModels(parts.targets);
  }

  close(): void {
    this.#served.close();
  }

  /** Tries once, and retries once on another replica if that is safe. */
  async exchange(
    call: Call,
    target: Target,
    body: UpstreamRequest['body'],
    limit?: FirstByteLimit,
  ): Promise<Exchanged> {
    // The names of models differ between deployments.
    const isFallback = target.deploymentId !== call.target.deploymentId;
    const asked: Asked = {
      call,
      target,
      body,
      model: call.model ?? (isFallback ? await modelIn(body) : undefined),
      isFallback,
      limit,
      signal: limit === undefined ? call.signal : AbortSignal.any([call.signal, limit.signal]),
    };
    let prefix: Prefix | undefined;
    const options = {
      bodyBytes: Buffer.isBuffer(body) ? body.length : 0,
      prefix: () => (prefix ??= Buffer.isBuffer(body) ? prefixOf(body, target.deploymentId) : NO_PREFIX),
    };
    let failed: { error: UpstreamError; except: string | undefined } | undefined;
    for (;;) {
      const current = failed === undefined ? target : (this.#parts.targets.find(target.slug) ?? target);
      const choice = this.#parts.balancer.choose(
        current,
        failed?.except === undefined ? options : { ...options, except: failed.except },
      );
      if (choice === undefined) throw asApiError(failed?.error);
      call.choice = choice;
      if (failed !== undefined) call.numRetries++;
      const tried: Tried = { method: call.request.method, body };
      try {
        return await this.#try(asked, choice, tried);
      } catch (error) {
        choice.close();
        if (error instanceof UnusableResponse) await endUnusable(call, error);
        if (!(error instanceof UpstreamError)) throw error;
        // A reset of a reused connection says nothing about the replica.
        const isStale = error.reason === 'reset' && error.wasReused;
        if (!isStale) call.failures.push(error.reason);
        if (!isStale && error.reason !== 'timeout') this.#parts.balancer.suspect(choice.replica.id);
        if (failed !== undefined || !canRepeat(error, tried, call.address.path)) throw asApiError(error);
        failed = { error, except: isStale ? undefined : choice.replica.id };
      }
    }
  }

  /** Sends the request to one replica. Sets the body of `tried`. */
  async #try(asked: Asked, choice: Choice, tried: Tried): Promise<Exchanged> {
    const { call, target, body, limit, signal } = asked;
    const { isBuiltin } = choice.replica;
    if (this.#parts.billing !== undefined)
      call.bill ??= await this.#parts.billing.open(
        billedCall(call, target),
        Buffer.isBuffer(body) ? body : undefined,
        isBuiltin,
      );
    call.bill ??= meterOf(call, body);
    const upstream = this.#upstreamCall(choice, call, signal);
    const local = upstream?.local(target.name);
    if (local !== undefined) return { choice, response: local };
    let sent =
      upstream === undefined ? await this.#replicaRequest(asked, choice) : await this.#upstreamRequest(asked, upstream);
    tried.body = sent.body;
    call.sentAtMs = sent.body === undefined || Buffer.isBuffer(sent.body) ? performance.now() : undefined;
    signal.throwIfAborted();
    if (upstream === undefined && call.bill !== undefined) tried.body = (sent = call.bill.limit(sent, isBuiltin)).body;
    const isBilledWhole = upstream?.isStream === false && call.bill !== undefined;
    const isPriced = isBilledWhole && !(call.bill instanceof TokenMeter);
    const { lingerMs } = this.#parts.times;
    const until = isPriced ? lingering(signal, undefined, lingerMs) : lingering(call.signal, limit?.signal, lingerMs);
    const received = choice.upstream
      .send(sent, isBilledWhole ? until : signal)
      .then((response): Received | Promise<Received> => upstream?.receive(response) ?? { response, reader: undefined });
    const { response, reader } = await this.#parts.late.inTime(received, limit, call, { choice, received });
    call.connectMs = response.connectMs;
    return { choice, response, reader };
  }

  /** Returns undefined for a replica of this service. */
  #upstreamCall({ replica }: Choice, call: Call, signal: AbortSignal): UpstreamCall | undefined {
    const { upstream } = replica;
    if (upstream === undefined) return undefined;
    const { request, requestId, address } = call;
    const { times, log } = this.#parts;
    return new UpstreamCall({
      replica: { ...replica, upstream },
      request,
      path: address.path,
      requestId,
      signal,
      idleTimeoutMs: times.idleTimeoutMs,
      memory: new ResponseMemory(this.#responseBytes, call.target.ownerId),
      log,
    });
  }

  #upstreamRequest(asked: Asked, upstream: UpstreamCall): Promise<UpstreamRequest> {
    const { call, body, model, isFallback } = asked;
    asked.gathered ??= new GatheredBody(() =>
      this.#upstreamBodies.read(
        limitedBody(model === undefined ? body : wholeOf(model), call.address.path, call.bill, upstream.settings),
        call.target.ownerId,
      ),
    );
    return upstream.prepare(asked.gathered, {
      requested: model?.requested,
      // Names of models within a deployment are unknown to its fallbacks.
      inner: isFallback ? undefined : model?.inner,
    });
  }

  async #replicaRequest({ call, target, body, model, isFallback }: Asked, choice: Choice): Promise<UpstreamRequest> {
    const named = model === undefined ? body : await this.#bodyFor(model, choice, isFallback);
    return replicaRequest(call, target, choice, named, this.#parts);
  }

  /** Returns the body with a name that the replica knows. */
  async #bodyFor(
    { requested, inner, body }: RequestedModel,
    choice: Choice,
    isFallback: boolean,
  ): Promise<UpstreamRequest['body']> {
    if (inner !== undefined && !isFallback) return body.withModel(inner);
    return body.withModel(await this.#served.nameFor(choice, inner ?? requested));
  }
}

function wholeOf({ requested, body }: RequestedModel): UpstreamRequest['body'] {
  return body.whole ?? body.withModel(requested);
}

async function modelIn(body: UpstreamRequest['body']): Promise<RequestedModel | undefined> {
  return Buffer.isBuffer(body) ? modelOf(body) : undefined;
}

/** Returns undefined for a request that no key limits, and for one whose path has no tokens. */
function meterOf({ grant, request, address }: Call, body: UpstreamRequest['body']): TokenMeter | undefined {
  if (grant === undefined || !isRepeatable({ method: request.method, path: address.path })) return undefined;
  return new TokenMeter(Buffer.isBuffer(body) ? body.length : Number(header(request, 'content-length') ?? 0));
}

type Tried = Pick<UpstreamRequest, 'method' | 'body'>;

/** Inference requests change no state, so a retry is safe. Others are retried only with an idempotent method. */
function canRepeat({ reason, wasReached }: UpstreamError, { method, body }: Tried, path: string): boolean {
  if (reason === 'timeout' || (body !== undefined && !Buffer.isBuffer(body))) return false;
  return !wasReached || SAFE_TO_REPEAT.has(method) || isRepeatable({ method, path });
}
