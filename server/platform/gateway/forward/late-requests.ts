import { type Bill, endBill, unusableOutcome } from '../billing';
import type { Choice } from '../balancer';
import type { Call } from '../call';
import type { FirstByteLimit } from './fallbacks';
import { drain } from '../relay';
import type { UpstreamResponse } from '../upstream';
import { UnusableResponse } from '../upstreams/unusable-response';
import type { UsageReader } from '../usage-reader';

/** A request whose upstream has not sent the first byte of its response in time. A fallback gets the request. */
export interface LateRequest {
  bill: Bill;
  choice: Choice;
  received: Promise<{ response: UpstreamResponse; reader?: UsageReader | undefined }>;
}

/**
 * Most providers finish a response that is not streamed although no client waits for it, and charge for it. So the
 * gateway reads the responses of late upstreams and bills their usage. No client gets them.
 */
export class LateRequests {
  readonly #idleTimeoutMs: number;
  readonly #open = new Set<Promise<void>>();

  constructor({ idleTimeoutMs }: { idleTimeoutMs: number }) {
    this.#idleTimeoutMs = idleTimeoutMs;
  }

  /** Waits until the limit. Then no client gets the response, but its usage is billed. */
  async inTime<T>(
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
        this.#add({ ...late, bill: call.bill });
        call.bill = undefined;
      } else {
        void late.received.then(({ reader }) => reader?.close?.()).catch(() => {});
      }
      throw error;
    }
  }

  /** Resolves when all bills have ended. */
  async settled(): Promise<void> {
    while (this.#open.size > 0) await Promise.all(this.#open);
  }

  /** Ends the bill when the upstream has responded or failed. One that fails or does not finish costs nothing. */
  #add(late: LateRequest): void {
    const settling = this.#settle(late).finally(() => this.#open.delete(settling));
    this.#open.add(settling);
  }

  /** Never rejects. */
  async #settle({ bill, choice, received }: LateRequest): Promise<void> {
    const counter = new CountingReader();
    try {
      const { response, reader } = await received;
      counter.reader = reader;
      await drain(response.body, { usage: counter, idleTimeoutMs: this.#idleTimeoutMs, onFirstByte: () => {} });
      await endBill({
        bill,
        usage: reader?.usage,
        isPartial: reader?.isPartial === true,
        choice,
        status: response.status,
        hasClientLeft: false,
        response: { numBytes: counter.numBytes, numEvents: 0 },
      });
    } catch (error) {
      if (error instanceof UnusableResponse) await endBill(unusableOutcome(bill, choice, error.spent));
      else bill.refund();
    } finally {
      counter.reader?.close?.();
    }
  }
}

/** Counts what a reader returns. */
class CountingReader implements UsageReader {
  reader: UsageReader | undefined;
  numBytes = 0;

  get usage() {
    return this.reader?.usage;
  }

  take(piece: Buffer): Buffer {
    return this.#counted(this.reader?.take(piece) ?? piece);
  }

  finish(): Buffer {
    return this.#counted(this.reader?.finish() ?? Buffer.alloc(0));
  }

  #counted(bytes: Buffer): Buffer {
    this.numBytes += bytes.length;
    return bytes;
  }
}
