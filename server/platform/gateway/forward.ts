import { createHash } from 'node:crypto';
import {
  ApiError,
  type CidrList,
  errorStyleOf,
  header,
  isLightReply,
  type Log,
  LOAD_HEADER,
  parseUsage,
  type ReplyStream,
  type StreamedRequest,
  toApiError,
  USAGE_HEADER,
} from 'capstan/internal';
import { isRepeatable } from './address';
import type { Billing } from './billing';
import { billedCall, type Call, endCall } from './call';
import type { Balancer, Choice } from './balancer';
import {
  chainOf,
  FirstByteLimit,
  isFailedStatus,
  isFailure,
  modelOf,
  PassedOver,
  passedOverHeader,
  reasonOf,
  withPassedOver,
} from './fallbacks';
import { forwardedHeaders, rawHeader, returnedHeaders, withSecret } from './headers';
import type { ColdStartQueue } from './cold-start-queue';
import { type Prefix, prefixOf } from './prefix-index';
import type { RequestedModel } from './model-api';
import { mustStream, wholeBody } from './model-body';
import { TokenMeter } from './token-meter';
import { HeldBytes } from './held-bodies';
import { type LateRequest, LateRequests } from './late-requests';
import { lingering } from './linger';
import { gather, relay } from './relay';
import type { UpstreamRequest } from './request-head';
import { WholeBodies } from './whole-bodies';
import { ServedModels } from './served-models';
import type { Target, Targets } from './targets';
import type { UpstreamResponse } from './upstream';
import { UpstreamError } from './upstream-error';
import { GatheredBodies, GatheredBody } from './upstreams/gathered-body';
import { limitedBody } from './upstreams/limited-body';
import type { Received } from './upstreams/received';
import { STREAM_LIMITS, StreamMemory } from './upstreams/stream-memory';
import { UpstreamCall } from './upstreams/upstream-call';
import { UpstreamHealth } from './upstreams/upstream-health';
import { UsageComment, type UsageReader, UsageTail } from './usage-reader';
import { asksForStream, KeepAliveComments, type KeepAliveTimes } from './keep-alive-comments';

export interface ForwardTimes extends KeepAliveTimes {
  firstByteTimeoutMs: number;
  idleTimeoutMs: number;
  /** A client that reads nothing for this long is disconnected. */
  slowClientTimeoutMs: number;
  /** How long an upstream may take to finish a response that is not streamed, when no client waits for it. */
  lingerMs: number;
}

export interface ForwardParts {
  targets: Targets;
  balancer: Balancer;
  coldStarts: ColdStartQueue;
  times: ForwardTimes;
  scheme: 'http' | 'https';
  trustedProxies: CidrList | undefined;
  /** Absent: requests cost nothing. */
  billing?: Billing | undefined;
  log: Pick<Log, 'info'>;
}

const NO_PREFIX: Prefix = [];
const SAFE_TO_REPEAT = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE']);
const EVENT_STREAM = /^text\/event-stream\b/i;
const MAY_REPORT_USAGE = /^(?:text\/event-stream|application\/json)\b/i;

/** Sends a request to a replica and relays the response. */
export class Forwarder {
  readonly #parts: ForwardParts;
  readonly #served: ServedModels;
  readonly #bodies = new WholeBodies();
  readonly #upstreamBodies = new GatheredBodies();
  readonly #streamBytes = new HeldBytes(STREAM_LIMITS);
  readonly #health = new UpstreamHealth();
  readonly #late: LateRequests;
  #numOpenStreams = 0;

  constructor(parts: ForwardParts) {
    this.#parts = parts;
    this.#served = new ServedModels(parts.targets);
    this.#late = new LateRequests(parts.times);
  }

  get numOpenStreams(): number {
    return this.#numOpenStreams;
  }

  /** Resolves when all bills have ended. Call it when no request is open. */
  settled(): Promise<void> {
    return this.#late.settled();
  }

  close(): void {
    this.#served.close();
  }

  /**
   * Throws when the response has not started. After that, reports errors inside the response where its format allows
   * it.
   */
  async forward(call: Call): Promise<void> {
    const body = await this.#bodyOf(call);
    // A long body of the API of all deployments is in `call.model`.
    const canRepeat = call.model === undefined ? body === undefined || Buffer.isBuffer(body) : body !== undefined;
    const chain = this.#health.usable(chainOf(call, this.#parts.targets, canRepeat));
    let begun: ReplyStream | undefined;
    const onBegun = (stream: ReplyStream): void => {
      begun = stream;
    };
    for (const [i, target] of chain.entries()) {
      try {
        call.servedBy = target;
        const attempt = await this.#attempt(call, target, body, { isLast: i === chain.length - 1, begun, onBegun });
        this.#health.report(target, !(attempt instanceof PassedOver));
        if (attempt instanceof PassedOver) {
          (call.passedOver ??= []).push(attempt);
          await endCall(call, undefined);
          continue;
        }
        try {
          await this.#relay(call, attempt, begun);
          await endCall(call, attempt.response.status);
        } finally {
          attempt.choice.close();
        }
        return;
      } catch (caught) {
        await endCall(call, undefined);
        const error = call.signal.aborted ? caught : withPassedOver(caught, call.passedOver);
        if (begun === undefined) throw error;
        sendErrorEvent(begun, error, call);
        throw new ReportedError();
      }
    }
  }

  /** Returns the body. Reads all of it if it may be sent again, or if its cost must be known. */
  async #bodyOf(call: Call): Promise<UpstreamRequest['body']> {
    const { request, model, target } = call;
    const body = model === undefined ? await readBody(request) : model.body.whole;
    if (this.#parts.billing?.needsBody(billedCall(call, target)) !== true || Buffer.isBuffer(body)) return body;
    if (model === undefined) return body === undefined ? undefined : await this.#bodies.read(body, target.ownerId);
    const whole = await this.#bodies.read(model.body.withModel(model.requested), target.ownerId);
    call.model = { ...model, body: wholeBody(whole, model.body.field) };
    return whole;
  }

  /**
   * Returns the response of one deployment, or why the next one of the chain gets the request. The last one always
   * responds or throws.
   */
  async #attempt(
    call: Call,
    target: Target,
    body: UpstreamRequest['body'],
    { isLast, begun, onBegun }: { isLast: boolean; begun: ReplyStream | undefined; onBegun: (s: ReplyStream) => void },
  ): Promise<Exchanged | PassedOver> {
    if (isLast) return this.#exchange(call, await this.#ready(call, target, body, begun, onBegun), body);
    let exchanged: Exchanged | undefined;
    const { firstByteTimeoutMs, idleTimeoutMs } = this.#parts.times;
    let limit: FirstByteLimit | undefined;
    let passedOver: PassedOver;
    try {
      const ready = await this.#ready(call, target, body, begun, onBegun);
      limit = new FirstByteLimit(call.target.fallbackAfterMs ?? firstByteTimeoutMs + idleTimeoutMs);
      exchanged = await this.#exchange(call, ready, body, limit);
      const { status, body: content } = exchanged.response;
      if (!isFailedStatus(status)) {
        // Before the first byte of the content, the client has received nothing, so another deployment may respond.
        await this.#inTime(content.started(), limit, call, {
          choice: exchanged.choice,
          received: Promise.resolve(exchanged),
        });
        return exchanged;
      }
      content.destroy();
      passedOver = new PassedOver(target, `status ${status}`);
    } catch (error) {
      if (call.signal.aborted || !isFailure(error)) {
        exchanged?.choice.close();
        throw error;
      }
      if (exchanged !== undefined)
        call.failures.push(error instanceof UpstreamError && error.reason === 'timeout' ? 'timeout' : 'cut');
      passedOver = new PassedOver(target, reasonOf(error));
    } finally {
      limit?.end();
    }
    exchanged?.choice.close();
    call.numRetries++;
    return passedOver;
  }

  /** Waits for the first replica. The client of a stream receives comments meanwhile. */
  async #ready(
    { signal, reply }: Call,
    target: Target,
    body: UpstreamRequest['body'],
    begun: ReplyStream | undefined,
    onBegun: (stream: ReplyStream) => void,
  ): Promise<Target> {
    const held = this.#parts.coldStarts.ready(target, signal, Buffer.isBuffer(body) ? body.length : 0);
    if (!(held instanceof Promise)) return held;
    const waiting =
      Buffer.isBuffer(body) && asksForStream(body) ? new KeepAliveComments(reply, this.#parts.times, begun) : undefined;
    try {
      return await held;
    } finally {
      const stream = waiting?.end();
      if (stream !== undefined) onBegun(stream);
    }
  }

  /** Tries once, and retries once on another replica if that is safe. */
  async #exchange(
    call: Call,
    target: Target,
    body: UpstreamRequest['body'],
    limit?: FirstByteLimit,
  ): Promise<Exchanged> {
    const signal = limit === undefined ? call.signal : AbortSignal.any([call.signal, limit.signal]);
    // The names of models differ between deployments.
    const isFallback = target.deploymentId !== call.target.deploymentId;
    const model = call.model ?? (isFallback ? await modelIn(body) : undefined);
    let prefix: Prefix | undefined;
    const options = {
      bodyBytes: Buffer.isBuffer(body) ? body.length : 0,
      prefix: () => (prefix ??= Buffer.isBuffer(body) ? prefixOf(body, target.deploymentId) : NO_PREFIX),
    };
    let gathered: GatheredBody | undefined;
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
      let sent: UpstreamRequest | undefined;
      try {
        if (this.#parts.billing !== undefined)
          call.bill ??= await this.#parts.billing.open(
            billedCall(call, target),
            Buffer.isBuffer(body) ? body : undefined,
            choice.replica.isBuiltin,
          );
        call.bill ??= meterOf(call, body);
        const upstream = this.#upstreamCall(choice, call, signal);
        const local = upstream?.local(target.name);
        if (local !== undefined) return { choice, response: local };
        if (upstream !== undefined)
          sent = await upstream.prepare(
            (gathered ??= new GatheredBody(() =>
              this.#upstreamBodies.read(
                limitedBody(
                  model === undefined ? body : wholeOf(model),
                  call.address.path,
                  call.bill,
                  upstream.settings,
                ),
                call.target.ownerId,
              ),
            )),
            {
              requested: model?.requested,
              // Names of models within a deployment are unknown to its fallbacks.
              inner: isFallback ? undefined : model?.inner,
            },
          );
        else {
          const named = model === undefined ? body : await this.#bodyFor(model, choice, isFallback);
          sent = this.#request(call, target, choice, named);
        }
        call.sentAtMs = sent.body === undefined || Buffer.isBuffer(sent.body) ? performance.now() : undefined;
        signal.throwIfAborted();
        if (upstream === undefined && call.bill !== undefined) sent = call.bill.limit(sent, choice.replica.isBuiltin);
        const isBilledWhole = upstream?.isStream === false && call.bill !== undefined;
        const isPriced = isBilledWhole && !(call.bill instanceof TokenMeter);
        const { lingerMs } = this.#parts.times;
        const until = isPriced
          ? lingering(signal, undefined, lingerMs)
          : lingering(call.signal, limit?.signal, lingerMs);
        const received = choice.upstream
          .send(sent, isBilledWhole ? until : signal)
          .then(
            (response): Received | Promise<Received> => upstream?.receive(response) ?? { response, reader: undefined },
          );
        const { response, reader } = await this.#inTime(received, limit, call, { choice, received });
        call.connectMs = response.connectMs;
        return { choice, response, reader };
      } catch (error) {
        choice.close();
        if (!(error instanceof UpstreamError)) throw error;
        // A reset of a reused connection says nothing about the replica.
        const isStale = error.reason === 'reset' && error.wasReused;
        if (!isStale) call.failures.push(error.reason);
        if (!isStale && error.reason !== 'timeout') this.#parts.balancer.suspect(choice.replica.id);
        const tried = { method: call.request.method, body: sent === undefined ? body : sent.body };
        if (failed !== undefined || !canRepeat(error, tried, call.address.path)) throw asApiError(error);
        failed = { error, except: isStale ? undefined : choice.replica.id };
      }
    }
  }

  /** Waits until the limit. Then no client gets the response, but its usage is billed. */
  async #inTime<T>(
    ready: Promise<T>,
    limit: FirstByteLimit | undefined,
    call: Call,
    late: Omit<LateRequest, 'bill'>,
  ): Promise<T> {
    if (limit === undefined) return ready;
    try {
      return await limit.before(ready, call.signal);
    } catch (error) {
      if (error === limit.signal.reason && call.bill !== undefined) {
        this.#late.add({ ...late, bill: call.bill });
        call.bill = undefined;
      }
      throw error;
    }
  }

  /** Returns undefined for a replica of this service. */
  #upstreamCall({ replica }: Choice, call: Call, signal: AbortSignal): UpstreamCall | undefined {
    const { upstream } = replica;
    if (upstream === undefined) return undefined;
    const { idleTimeoutMs } = this.#parts.times;
    const { request, requestId, address } = call;
    const { log } = this.#parts;
    return new UpstreamCall({
      replica: { ...replica, upstream },
      request,
      path: address.path,
      requestId,
      signal,
      idleTimeoutMs,
      memory: new StreamMemory(this.#streamBytes, call.target.ownerId),
      log,
    });
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

  /** Returns the request for a replica of this service. */
  #request(
    { request, requestId, trace, address, grant, priority }: Call,
    { cacheScope, deploymentId }: Target,
    { replica: { secret } }: Choice,
    body: UpstreamRequest['body'],
  ): UpstreamRequest {
    const { scheme, trustedProxies } = this.#parts;
    const salt = saltOf(cacheScope === 'key' && grant !== undefined ? grant.keyId : deploymentId);
    const options = { requestId, trace, scheme, trustedProxies, address, salt, priority };
    return {
      method: request.method,
      target: request.query === '' ? address.path : `${address.path}?${request.query}`,
      headers: withSecret(forwardedHeaders(request, options), secret),
      body,
    };
  }

  async #relay(
    call: Call,
    { choice: { replica }, response: { status, rawHeaders: raw, body }, reader }: Exchanged,
    begun: ReplyStream | undefined,
  ): Promise<void> {
    const { reply, address, request } = call;
    const contentType = rawHeader(raw, 'content-type') ?? '';
    const load = replica.isBuiltin ? rawHeader(raw, LOAD_HEADER) : undefined;
    if (load !== undefined) this.#parts.balancer.report(replica.id, load);
    const usage = replica.upstream === undefined ? usageReader(replica.isBuiltin, contentType, raw) : reader;
    const onFirstByte = () => {
      call.firstByteAtMs ??= performance.now();
    };
    const { idleTimeoutMs, slowClientTimeoutMs } = this.#parts.times;
    const isEvents = EVENT_STREAM.test(contentType);
    if (begun !== undefined && (!isEvents || status !== 200))
      return sendBodyAsEvent(begun, status, await gather(body, { usage, idleTimeoutMs, onFirstByte }), call);
    const length = rawHeader(raw, 'content-length');
    if (isEvents) this.#numOpenStreams++;
    try {
      const { end, open } = await relay(body, reply, call.signal, {
        status,
        headers: Object.assign(returnedHeaders(raw, address), passedOverHeader(call.passedOver)),
        contentLength: length === undefined ? undefined : Number(length),
        isHead: request.method === 'HEAD',
        usage,
        idleTimeoutMs,
        slowClientTimeoutMs,
        begun,
        onFirstByte,
      });
      call.wasCut = end === 'cut' || usage?.hasFailed === true;
      if (call.wasCut) call.failures.push('cut');
      if (open !== undefined)
        endOpenStream(open.stream, {
          error:
            end === 'cut'
              ? new ApiError('upstream_unavailable', 'The deployment ended its response too early')
              : call.signal.reason,
          isEvents,
          isAtLineEnd: open.isAtLineEnd,
          isClientGone: request.signal.aborted,
          call,
        });
    } catch (error) {
      if (!(error instanceof UpstreamError)) throw error;
      if (!call.signal.aborted) call.failures.push('cut');
      throw asApiError(error);
    } finally {
      reader?.close?.();
      if (isEvents) this.#numOpenStreams--;
      const usageHeader = replica.isBuiltin ? rawHeader(raw, USAGE_HEADER) : undefined;
      call.usage = usageHeader === undefined ? usage?.usage : parseUsage(usageHeader);
      call.hasPartialUsage = usageHeader === undefined && usage?.isPartial === true;
      call.numEvents = usage?.numEvents ?? 0;
    }
  }
}

/** A response, and the replica that sends it. The caller closes the choice. */
interface Exchanged {
  choice: Choice;
  response: UpstreamResponse;
  /** Of an upstream: reads and rewrites its response. */
  reader?: UsageReader | undefined;
}

function wholeOf({ requested, body }: RequestedModel): UpstreamRequest['body'] {
  return body.whole ?? body.withModel(requested);
}

async function modelIn(body: UpstreamRequest['body']): Promise<RequestedModel | undefined> {
  return Buffer.isBuffer(body) ? modelOf(body) : undefined;
}

/** The error has already been written to the response. */
export class ReportedError extends Error {}

async function readBody(request: StreamedRequest): Promise<UpstreamRequest['body']> {
  if (mustStream(request)) return request.bodyPieces();
  const length = header(request, 'content-length');
  return length === undefined || length === '0' ? undefined : request.readBody();
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

function asApiError(error: UpstreamError | undefined): ApiError {
  if (error?.reason === 'timeout')
    return new ApiError('upstream_timeout', 'The deployment did not respond in time', { cause: error });
  return new ApiError(
    'upstream_unavailable',
    error?.wasReached === true
      ? 'The deployment closed the connection before it responded'
      : 'The deployment cannot be reached',
    { cause: error },
  );
}

function usageReader(isBuiltin: boolean, contentType: string, raw: readonly string[]): UsageReader | undefined {
  if (isBuiltin) return EVENT_STREAM.test(contentType) ? new UsageComment() : undefined;
  return MAY_REPORT_USAGE.test(contentType) && rawHeader(raw, 'content-encoding') === undefined
    ? new UsageTail()
    : undefined;
}

/** Not a secret: it separates cache scopes, and clients cannot choose it. */
function saltOf(scope: string): string {
  return createHash('sha256').update(`capstan-cache-scope\0${scope}`).digest('base64url');
}

interface StreamEnd {
  error: unknown;
  isEvents: boolean;
  isAtLineEnd: boolean;
  isClientGone: boolean;
  call: StyledCall;
}

function endOpenStream(stream: ReplyStream, { error, isEvents, isAtLineEnd, isClientGone, call }: StreamEnd): void {
  // A client that stopped reading would not read the error either.
  if (!isEvents || isClientGone || error === undefined) return stream.destroy();
  if (!isAtLineEnd) stream.write('\n\n');
  sendErrorEvent(stream, error, call);
}

/** What decides how a stream shows an error. */
type StyledCall = Pick<Call, 'address' | 'requestId'>;

/** Sends an error as the last event of a stream, and ends it. */
function sendErrorEvent(stream: ReplyStream, error: unknown, { address, requestId }: StyledCall): void {
  stream.write(errorStyleOf(address.path).events(toApiError(error), requestId));
  stream.end();
}

/** Sends a plain JSON response as one event, because a stream has already been started. */
function sendBodyAsEvent(stream: ReplyStream, status: number, body: Buffer, call: StyledCall): void {
  const value = asJson(body.toString());
  if (value === undefined) {
    const message = `Expected an event stream, but the deployment responded with status ${status}`;
    return sendErrorEvent(stream, new ApiError('upstream_unavailable', message), call);
  }
  stream.write(errorStyleOf(call.address.path).bodyEvents(value));
  stream.end();
}

function asJson(text: string): unknown {
  try {
    return isLightReply(text) ? (JSON.parse(text) ?? undefined) : undefined;
  } catch {
    return undefined;
  }
}
