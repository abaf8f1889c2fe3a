import { ApiError, LOAD_HEADER, parseUsage, type ReplyStream, USAGE_HEADER } from 'capstan/internal';
import type { Balancer } from '../balancer';
import type { Call } from '../call';
import type { Exchanged } from './exchange';
import { passedOverHeader } from './fallbacks';
import { rawHeader, returnedHeaders } from '../headers';
import { gather, relay } from '../relay';
import { endOpenStream, sendBodyAsEvent } from './stream-errors';
import { asApiError, UpstreamError } from '../upstream-error';
import { UsageComment, type UsageReader, UsageTail } from '../usage-reader';

export interface RelayTimes {
  idleTimeoutMs: number;
  /** A client that reads nothing for this long is disconnected. */
  slowClientTimeoutMs: number;
}

const EVENT_STREAM = /^text\/event-stream\b/i;
const MAY_REPORT_USAGE = /^(?:text\/event-stream|application\/json)\b/i;

/** Relays responses to their clients, and records what they report. */
export class ResponseRelay {
  readonly #balancer: Balancer;
  readonly #times: RelayTimes;
  #numOpenStreams = 0;

  constructor({ balancer, times }: { balancer: Balancer; times: RelayTimes }) {
    this.#balancer = balancer;
    this.#times = times;
  }

  get numOpenStreams(): number {
    return this.#numOpenStreams;
  }

  /** @param begun A stream that was started before the replica responded. */
  async relay(
    call: Call,
    { choice: { replica }, response: { status, rawHeaders: raw, body }, reader }: Exchanged,
    begun: ReplyStream | undefined,
  ): Promise<void> {
    const { reply, address, request } = call;
    const contentType = rawHeader(raw, 'content-type') ?? '';
    const load = replica.isBuiltin ? rawHeader(raw, LOAD_HEADER) : undefined;
    if (load !== undefined) this.#balancer.report(replica.id, load);
    const usage = replica.upstream === undefined ? usageReader(replica.isBuiltin, contentType, raw) : reader;
    const onFirstByte = () => {
      call.firstByteAtMs ??= performance.now();
    };
    const { idleTimeoutMs, slowClientTimeoutMs } = this.#times;
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
      if (isEvents) this.#numOpenStreams--;
      const usageHeader = replica.isBuiltin ? rawHeader(raw, USAGE_HEADER) : undefined;
      call.usage = usageHeader === undefined ? usage?.usage : parseUsage(usageHeader);
      call.hasPartialUsage = usageHeader === undefined && usage?.isPartial === true;
      call.numEvents = usage?.numEvents ?? 0;
    }
  }
}

function usageReader(isBuiltin: boolean, contentType: string, raw: readonly string[]): UsageReader | undefined {
  if (isBuiltin) return EVENT_STREAM.test(contentType) ? new UsageComment() : undefined;
  return MAY_REPORT_USAGE.test(contentType) && rawHeader(raw, 'content-encoding') === undefined
    ? new UsageTail()
    : undefined;
}
