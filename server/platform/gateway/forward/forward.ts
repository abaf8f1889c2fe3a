import { type CidrList, header, type Log, type ReplyStream, type StreamedRequest } from 'capstan/internal';
import type { Balancer } from '../balancer';
import type { Billing } from '../billing';
import { billedCall, type Call, endCall } from '../call';
import type { ColdStartQueue } from '../cold-start-queue';
import { closeExchange, type Exchanged, Exchanges } from './exchange';
import { chainOf, FirstByteLimit, isFailedStatus, isFailure, PassedOver, reasonOf, withPassedOver } from './fallbacks';
import { asksForStream, KeepAliveComments, type KeepAliveTimes } from '../keep-alive-comments';
import { LateRequests } from './late-requests';
import { mustStream, wholeBody } from '../model-body';
import type { UpstreamRequest } from '../request-head';
import { ResponseRelay } from './response-relay';
import { ReportedError, sendErrorEvent } from './stream-errors';
import type { Target, Targets } from '../targets';
import { UpstreamError } from '../upstream-error';
import { UpstreamHealth } from '../upstreams/upstream-health';
import { WholeBodies } from '../whole-bodies';

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

/** Sends a request to a replica and relays the response. */
export class Forwarder {
  readonly #parts: ForwardParts;
  readonly #exchanges: Exchanges;
  readonly #relay: ResponseRelay;
  readonly #bodies = new WholeBodies();
  readonly #health = new UpstreamHealth();
  readonly #late: LateRequests;

  constructor(parts: ForwardParts) {
    this.#parts = parts;
    this.#late = new LateRequests(parts.times);
    this.#exchanges = new Exchanges({ ...parts, late: this.#late });
    this.#relay = new ResponseRelay(parts);
  }

  get numOpenStreams(): number {
    return this.#relay.numOpenStreams;
  }

  /** Resolves when all bills have ended. Call it when no request is open. */
  settled(): Promise<void> {
    return this.#late.settled();
  }

  close(): void {
    this.#exchanges.close();
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
          // That of the next deployment counts.
          call.usage = undefined;
          continue;
        }
        try {
          await this.#relay.relay(call, attempt, begun);
          await endCall(call, attempt.response.status);
        } finally {
          closeExchange(attempt);
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
    if (isLast) return this.#exchanges.exchange(call, await this.#ready(call, target, body, begun, onBegun), body);
    let exchanged: Exchanged | undefined;
    const { firstByteTimeoutMs, idleTimeoutMs } = this.#parts.times;
    let limit: FirstByteLimit | undefined;
    let passedOver: PassedOver;
    try {
      const ready = await this.#ready(call, target, body, begun, onBegun);
      limit = new FirstByteLimit(call.target.fallbackAfterMs ?? firstByteTimeoutMs + idleTimeoutMs);
      exchanged = await this.#exchanges.exchange(call, ready, body, limit);
      const { status, body: content } = exchanged.response;
      if (!isFailedStatus(status)) {
        // Before the first byte of the content, the client has received nothing, so another deployment may respond.
        await this.#late.inTime(content.started(), limit, call, {
          choice: exchanged.choice,
          received: Promise.resolve(exchanged),
        });
        return exchanged;
      }
      content.destroy();
      passedOver = new PassedOver(target, `status ${status}`);
    } catch (error) {
      if (call.signal.aborted || !isFailure(error)) {
        if (exchanged !== undefined) closeExchange(exchanged);
        throw error;
      }
      if (exchanged !== undefined)
        call.failures.push(error instanceof UpstreamError && error.reason === 'timeout' ? 'timeout' : 'cut');
      passedOver = new PassedOver(target, reasonOf(error));
    } finally {
      limit?.end();
    }
    if (exchanged !== undefined) closeExchange(exchanged);
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
}

async function readBody(request: StreamedRequest): Promise<UpstreamRequest['body']> {
  if (mustStream(request)) return request.bodyPieces();
  const length = header(request, 'content-length');
  return length === undefined || length === '0' ? undefined : request.readBody();
}
