import { createHash } from 'node:crypto';
import {
  ApiError,
  type CidrList,
  errorStyleOf,
  type Granted,
  header,
  LOAD_HEADER,
  parseUsage,
  type RecordedReply,
  type ReplicaUsage,
  type ReplyStream,
  type StreamedRequest,
  toApiError,
  USAGE_HEADER,
} from 'capstan/internal';
import type { DeploymentAddress } from './address';
import type { Balancer, Choice } from './balancer';
import { forwardedHeaders, rawHeader, returnedHeaders, withSecret } from './headers';
import type { ColdStartQueue } from './cold-start-queue';
import { type Prefix, prefixOf } from './prefix-index';
import { gather, relay } from './relay';
import type { UpstreamRequest } from './request-head';
import type { Target, Targets } from './targets';
import type { UpstreamResponse } from './upstream';
import { UpstreamError, type UpstreamFailure } from './upstream-error';
import { UsageComment, type UsageReader, UsageTail } from './usage-reader';
import { asksForStream, KeepAliveComments, type KeepAliveTimes } from './keep-alive-comments';

export interface ForwardTimes extends KeepAliveTimes {
  idleTimeoutMs: number;
  /** A client that reads nothing for this long is disconnected. */
  slowClientTimeoutMs: number;
}

export interface ForwardParts {
  targets: Targets;
  balancer: Balancer;
  coldStarts: ColdStartQueue;
  times: ForwardTimes;
  scheme: 'http' | 'https';
  trustedProxies: CidrList | undefined;
}

/** One request to a deployment, and its outcome. */
export interface Call {
  readonly request: StreamedRequest;
  readonly requestId: string;
  readonly reply: RecordedReply;
  readonly address: DeploymentAddress;
  readonly target: Target;
  readonly grant: Granted | undefined;
  /** Aborts when the client disconnects or the key is revoked. */
  readonly signal: AbortSignal;
  /** Replica of the last attempt. */
  choice?: Pick<Choice, 'replica' | 'reason' | 'matched'>;
  connectMs?: number;
  /** When the first byte of the response arrived, in monotonic milliseconds. */
  firstByteAtMs?: number;
  usage?: ReplicaUsage | undefined;
  /** The replica broke off after the response had started. */
  wasCut?: boolean;
  /** Failures of replicas, in order. A reset of a stale connection does not count. */
  failures: UpstreamFailure[];
  numRetries: number;
}

/**
 * Bodies up to this size are buffered before a replica is chosen: they can be retried, and a slow client does not block
 * a replica.
 */
const GATHERED_BODY_BYTES = 1024 * 1024;
const NO_PREFIX: Prefix = [];
const SAFE_TO_REPEAT = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE']);
/** Those that are not below /v1. */
const INFERENCE_PATHS = new Set(['/rerank', '/v2/rerank', '/score', '/tokenize', '/detokenize']);
const EVENT_STREAM = /^text\/event-stream\b/i;
const MAY_REPORT_USAGE = /^(?:text\/event-stream|application\/json)\b/i;

/** Sends a request to a replica and relays the response. */
export class Forwarder {
  readonly #parts: ForwardParts;
  #numOpenStreams = 0;

  constructor(parts: ForwardParts) {
    this.#parts = parts;
  }

  get numOpenStreams(): number {
    return this.#numOpenStreams;
  }

  /**
   * Throws when the response has not started. After that, reports errors inside the response where its format allows
   * it.
   */
  async forward(call: Call): Promise<void> {
    const body = await readBody(call.request);
    const { target, begun } = await this.#ready(call, body);
    try {
      const { choice, response } = await this.#exchange(call, target, body);
      try {
        await this.#relay(call, choice, response, begun);
      } finally {
        choice.close();
      }
    } catch (error) {
      if (begun === undefined) throw error;
      sendErrorEvent(begun, error, call);
    }
  }

  /** Waits for the first replica. The client of a stream receives comments meanwhile. */
  async #ready(call: Call, body: UpstreamRequest['body']): Promise<{ target: Target; begun: ReplyStream | undefined }> {
    const { target, signal, reply } = call;
    const held = this.#parts.coldStarts.ready(target, signal, Buffer.isBuffer(body) ? body.length : 0);
    if (!(held instanceof Promise)) return { target: held, begun: undefined };
    const waiting =
      Buffer.isBuffer(body) && asksForStream(body) ? new KeepAliveComments(reply, this.#parts.times) : undefined;
    try {
      const ready = await held;
      return { target: ready, begun: waiting?.end() };
    } catch (error) {
      const begun = waiting?.end();
      if (begun === undefined) throw error;
      sendErrorEvent(begun, error, call);
      throw new ReportedError();
    }
  }

  /** Tries once, and retries once on another replica if that is safe. */
  async #exchange(
    call: Call,
    target: Target,
    body: UpstreamRequest['body'],
  ): Promise<{ choice: Choice; response: UpstreamResponse }> {
    const request = this.#request(call, body);
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
      try {
        const response = await choice.upstream.send(
          { ...request, headers: withSecret(request.headers, choice.replica.secret) },
          call.signal,
        );
        call.connectMs = response.connectMs;
        return { choice, response };
      } catch (error) {
        choice.close();
        if (!(error instanceof UpstreamError)) throw error;
        // A reset of a reused connection says nothing about the replica.
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
    { status, rawHeaders: raw, body }: UpstreamResponse,
    begun: ReplyStream | undefined,
  ): Promise<void> {
    const { reply, address, request } = call;
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
      return sendBodyAsEvent(begun, status, await gather(body, { usage, idleTimeoutMs, onFirstByte }), call);
    const length = rawHeader(raw, 'content-length');
    if (isEvents) this.#numOpenStreams++;
    try {
      const { end, stream, isAtLineEnd } = await relay(body, reply, call.signal, {
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
          call,
        });
    } catch (error) {
      if (!(error instanceof UpstreamError)) throw error;
      if (!call.signal.aborted) call.failures.push('cut');
      throw asApiError(error);
    } finally {
      if (isEvents) this.#numOpenStreams--;
      const usageHeader = replica.isBuiltin ? rawHeader(raw, USAGE_HEADER) : undefined;
      call.usage = usageHeader === undefined ? usage?.usage : parseUsage(usageHeader);
    }
  }
}

/** The error has already been written to the response. */
export class ReportedError extends Error {}

async function readBody(request: StreamedRequest): Promise<UpstreamRequest['body']> {
  const length = header(request, 'content-length');
  const isChunked = header(request, 'transfer-encoding') !== undefined;
  if (!isChunked && (length === undefined || length === '0')) return undefined;
  return isChunked || Number(length) > GATHERED_BODY_BYTES ? request.bodyPieces() : request.readBody();
}

/** Inference requests change no state, so a retry is safe. Others are retried only with an idempotent method. */
function canRepeat({ reason, wasReached }: UpstreamError, { method, body }: UpstreamRequest, path: string): boolean {
  if (reason === 'timeout' || (body !== undefined && !Buffer.isBuffer(body))) return false;
  return !wasReached || SAFE_TO_REPEAT.has(method) || isInference(path);
}

function isInference(path: string): boolean {
  return path.startsWith('/v1/') || INFERENCE_PATHS.has(path);
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
  isEvents: boolean;
  isAtLineEnd: boolean;
  reason: unknown;
  isClientGone: boolean;
  call: StyledCall;
}

function endStream(
  stream: ReplyStream,
  end: 'complete' | 'cut' | 'client',
  { isEvents, isAtLineEnd, reason, isClientGone, call }: StreamEnd,
): void {
  if (end === 'complete') return stream.end();
  const error =
    end === 'cut' ? new ApiError('upstream_unavailable', 'The deployment ended its response too early') : reason;
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
    return JSON.parse(text) ?? undefined;
  } catch {
    return undefined;
  }
}
