import { createHash } from 'node:crypto';
import type { CidrList, Granted } from '../access';
import type { Answer } from '../answer';
import { ApiError, renderError, toApiError } from '../errors';
import { header, type ReplyStream, type StreamedRequest } from '../http/transport';
import { LOAD_HEADER, parseUsage, type ReplicaUsage, USAGE_HEADER } from '../replica-headers';
import type { Addressed } from './address';
import type { Balancer, Choice } from './balancer';
import { forwardedHeaders, rawHeader, returnedHeaders, withSecret } from './headers';
import type { Holds } from './hold';
import { type Prefix, prefixOf } from './prefix-index';
import { gather, relay } from './relay';
import type { UpstreamRequest } from './request-head';
import type { Target, Targets } from './targets';
import type { UpstreamAnswer } from './upstream';
import { UpstreamError, type UpstreamFailure } from './upstream-error';
import { UsageComment, type UsageReader, UsageTail } from './usage-reader';
import { asksForStream, Waiting, type WaitingTimes } from './waiting';

export interface ForwardTimes extends WaitingTimes {
  idleTimeoutMs: number;
  /** A client that reads nothing for this long is given up. */
  slowClientTimeoutMs: number;
}

export interface ForwardParts {
  targets: Targets;
  balancer: Balancer;
  holds: Holds;
  times: ForwardTimes;
  scheme: 'http' | 'https';
  trustedProxies: CidrList | undefined;
}

/** One request that may go on, and what becomes of it. */
export interface Call {
  readonly request: StreamedRequest;
  readonly requestId: string;
  readonly answer: Answer;
  readonly address: Addressed;
  readonly target: Target;
  readonly grant: Granted | undefined;
  /** Of the client and of the key. */
  readonly signal: AbortSignal;
  /** Of the last attempt. */
  choice?: Pick<Choice, 'replica' | 'reason' | 'matched'>;
  connectMs?: number;
  /** When the first byte of the answer came, by the monotonic clock. */
  firstByteAtMs?: number;
  usage?: ReplicaUsage | undefined;
  /** The replica broke off after the answer had begun. */
  wasCut?: boolean;
  /** Of replicas, in the order they came; that of a connection that was old is none. */
  failures: UpstreamFailure[];
  numRetries: number;
}

/** A body up to this length is gathered before a replica is asked: it can be sent twice, and a slow client holds no connection of a replica. */
const GATHERED_BODY_BYTES = 1024 * 1024;
const NO_PREFIX: Prefix = [];
const SAFE_TO_REPEAT = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE']);
const EVENT_STREAM = /^text\/event-stream\b/i;
const TELLS_USAGE = /^(?:text\/event-stream|application\/json)\b/i;

/** Sends a request to a replica and its answer back. */
export class Forwarder {
  readonly #parts: ForwardParts;
  #numOpenStreams = 0;

  constructor(parts: ForwardParts) {
    this.#parts = parts;
  }

  get numOpenStreams(): number {
    return this.#numOpenStreams;
  }

  /** Throws what is to be answered as long as nothing was; after that errors are told in the answer where it can hold them. */
  async forward(call: Call): Promise<void> {
    const body = await readBody(call.request);
    const { target, begun } = await this.#ready(call, body);
    try {
      const { choice, answer } = await this.#exchange(call, target, body);
      try {
        await this.#relay(call, choice, answer, begun);
      } finally {
        choice.close();
      }
    } catch (error) {
      if (begun === undefined) throw error;
      tellInStream(begun, error);
    }
  }

  /** Waits for a replica where there is none, telling the client of a stream so. */
  async #ready(
    { target, signal, answer }: Call,
    body: UpstreamRequest['body'],
  ): Promise<{ target: Target; begun: ReplyStream | undefined }> {
    const held = this.#parts.holds.ready(target, signal, Buffer.isBuffer(body) ? body.length : 0);
    if (!(held instanceof Promise)) return { target: held, begun: undefined };
    const waiting = Buffer.isBuffer(body) && asksForStream(body) ? new Waiting(answer, this.#parts.times) : undefined;
    try {
      const ready = await held;
      return { target: ready, begun: waiting?.end() };
    } catch (error) {
      const begun = waiting?.end();
      if (begun === undefined) throw error;
      tellInStream(begun, error);
      throw new AnsweredError();
    }
  }

  /** One try, and where that cannot have done harm one more, on another replica. */
  async #exchange(
    call: Call,
    target: Target,
    body: UpstreamRequest['body'],
  ): Promise<{ choice: Choice; answer: UpstreamAnswer }> {
    const request = this.#request(call, body);
    let prefix: Prefix | undefined;
    const ask = {
      bodyBytes: Buffer.isBuffer(body) ? body.length : 0,
      prefix: () => (prefix ??= Buffer.isBuffer(body) ? prefixOf(body, target.deploymentId) : NO_PREFIX),
    };
    let failed: { error: UpstreamError; except: string | undefined } | undefined;
    for (;;) {
      const current = failed === undefined ? target : (this.#parts.targets.find(target.slug) ?? target);
      const choice = this.#parts.balancer.choose(
        current,
        failed?.except === undefined ? ask : { ...ask, except: failed.except },
      );
      if (choice === undefined) throw asApiError(failed?.error);
      call.choice = choice;
      if (failed !== undefined) call.numRetries++;
      try {
        const answer = await choice.upstream.send(
          { ...request, headers: withSecret(request.headers, choice.replica.secret) },
          call.signal,
        );
        call.connectMs = answer.connectMs;
        return { choice, answer };
      } catch (error) {
        choice.close();
        if (!(error instanceof UpstreamError)) throw error;
        // The connection was old, which says nothing of its replica.
        const isStale = error.reason === 'reset' && error.wasReused;
        if (!isStale) call.failures.push(error.reason);
        if (!isStale && error.reason !== 'timeout') this.#parts.balancer.suspect(choice.replica.id);
        if (failed !== undefined || !canRepeat(error, request, call.address.path)) throw asApiError(error);
        failed = { error, except: isStale ? undefined : choice.replica.id };
      }
    }
  }

  #request(
    { request, requestId, address, target: { cacheScope, deploymentId }, grant }: Call,
    body: UpstreamRequest['body'],
  ): UpstreamRequest {
    const { scheme, trustedProxies } = this.#parts;
    const salt = saltOf(cacheScope === 'key' && grant !== undefined ? grant.keyId : deploymentId);
    return {
      method: request.method,
      target: request.query === '' ? address.path : `${address.path}?${request.query}`,
      headers: forwardedHeaders(request, { requestId, scheme, trustedProxies, address, salt }),
      body,
    };
  }

  async #relay(
    call: Call,
    { replica }: Choice,
    { status, rawHeaders: raw, body }: UpstreamAnswer,
    begun: ReplyStream | undefined,
  ): Promise<void> {
    const { answer, address, request } = call;
    const contentType = rawHeader(raw, 'content-type') ?? '';
    const load = replica.isBuiltin ? rawHeader(raw, LOAD_HEADER) : undefined;
    if (load !== undefined) this.#parts.balancer.report(replica.id, load);
    const usage = usageReader(replica.isBuiltin, contentType, raw);
    const onFirstByte = () => {
      call.firstByteAtMs ??= performance.now();
    };
    const { idleTimeoutMs, slowClientTimeoutMs } = this.#parts.times;
    const isEvents = EVENT_STREAM.test(contentType);
    if (begun !== undefined && (!isEvents || status !== 200))
      return tellAnswer(begun, status, await gather(body, { usage, idleTimeoutMs, onFirstByte }));
    const length = rawHeader(raw, 'content-length');
    if (isEvents) this.#numOpenStreams++;
    try {
      const { end, stream, isAtLineEnd } = await relay(body, answer, call.signal, {
        status,
        headers: returnedHeaders(raw, address),
        contentLength: length === undefined ? undefined : Number(length),
        isHead: request.method === 'HEAD',
        usage,
        idleTimeoutMs,
        slowClientTimeoutMs,
        begun,
        onFirstByte,
      });
      call.wasCut = end === 'cut';
      if (call.wasCut) call.failures.push('cut');
      if (stream !== undefined)
        endStream(stream, end, {
          isEvents,
          isAtLineEnd: isAtLineEnd ?? true,
          reason: call.signal.reason,
          isClientGone: request.signal.aborted,
        });
    } catch (error) {
      if (!(error instanceof UpstreamError)) throw error;
      if (!call.signal.aborted) call.failures.push('cut');
      throw asApiError(error);
    } finally {
      if (isEvents) this.#numOpenStreams--;
      const told = replica.isBuiltin ? rawHeader(raw, USAGE_HEADER) : undefined;
      call.usage = told === undefined ? usage?.usage : parseUsage(told);
    }
  }
}

/** Thrown where the answer has said already what went wrong. */
export class AnsweredError extends Error {}

async function readBody(request: StreamedRequest): Promise<UpstreamRequest['body']> {
  const length = header(request, 'content-length');
  const isChunked = header(request, 'transfer-encoding') !== undefined;
  if (!isChunked && (length === undefined || length === '0')) return undefined;
  return isChunked || Number(length) > GATHERED_BODY_BYTES ? request.bodyPieces() : request.readBody();
}

/** Requests of the inference interface change nothing; of others a second try must be of no more effect than one. */
function canRepeat({ reason, wasReached }: UpstreamError, { method, body }: UpstreamRequest, path: string): boolean {
  if (reason === 'timeout' || (body !== undefined && !Buffer.isBuffer(body))) return false;
  return !wasReached || SAFE_TO_REPEAT.has(method) || path.startsWith('/v1/');
}

function asApiError(error: UpstreamError | undefined): ApiError {
  if (error?.reason === 'timeout')
    return new ApiError('upstream_timeout', 'The deployment did not answer in time', { cause: error });
  return new ApiError(
    'upstream_unavailable',
    error?.wasReached === true ? 'The deployment broke off before it answered' : 'The deployment cannot be reached',
    { cause: error },
  );
}

function usageReader(isBuiltin: boolean, contentType: string, raw: readonly string[]): UsageReader | undefined {
  if (isBuiltin) return EVENT_STREAM.test(contentType) ? new UsageComment() : undefined;
  return TELLS_USAGE.test(contentType) && rawHeader(raw, 'content-encoding') === undefined
    ? new UsageTail()
    : undefined;
}

/** No secret: it only has to differ where caches are to be apart, and no client can name one. */
function saltOf(scope: string): string {
  return createHash('sha256').update(`capstan-cache-scope\0${scope}`).digest('base64url');
}

interface StreamEnd {
  isEvents: boolean;
  isAtLineEnd: boolean;
  reason: unknown;
  isClientGone: boolean;
}

function endStream(
  stream: ReplyStream,
  end: 'complete' | 'cut' | 'client',
  { isEvents, isAtLineEnd, reason, isClientGone }: StreamEnd,
): void {
  if (end === 'complete') return stream.end();
  const error = end === 'cut' ? new ApiError('upstream_unavailable', 'The deployment broke off its answer') : reason;
  // A client that stopped reading would not read this either.
  if (!isEvents || isClientGone || error === undefined) return stream.destroy();
  if (!isAtLineEnd) stream.write('\n\n');
  tellInStream(stream, error);
}

/** The last event of a stream that ends with an error. */
function tellInStream(stream: ReplyStream, error: unknown): void {
  stream.write(`data: ${renderError(toApiError(error))}\n\ndata: [DONE]\n\n`);
  stream.end();
}

/** An answer in one piece where a stream was begun already: its JSON is an event. */
function tellAnswer(stream: ReplyStream, status: number, body: Buffer): void {
  const json = asJson(body.toString());
  if (json === undefined)
    return tellInStream(
      stream,
      new ApiError('upstream_unavailable', `The deployment answered ${status} in place of a stream`),
    );
  stream.write(`data: ${json}\n\ndata: [DONE]\n\n`);
  stream.end();
}

function asJson(text: string): string | undefined {
  try {
    return JSON.stringify(JSON.parse(text));
  } catch {
    return undefined;
  }
}
