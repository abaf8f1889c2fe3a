import { ENDED_USAGE_PATH, parseUsage, type ReplicaUsage, SECRET_HEADER, USAGE_HEADER } from 'capstan/internal';
import type { Choice } from './balancer';
import { rawHeader } from './headers';
import type { UpstreamRequest } from './request-head';
import type { Target } from './targets';
import type { Spent } from './upstreams/unusable-response';

/** What decides the price of a request, and who pays. */
export interface BilledCall {
  /** The deployment's owner pays, and the key. */
  readonly ownerId: string;
  readonly keyId: string | undefined;
  /** The deployment that gets the request. */
  readonly target: Target;
  /** The model within it, if the request names one. */
  readonly inner: string | undefined;
  readonly method: string;
  /** Path at the deployment. */
  readonly path: string;
  /** From Content-Length. 0: not known. */
  readonly numBodyBytes: number;
}

/** Prices requests and keeps budgets. */
export interface Billing {
  /** Whether the body must be read whole, to find what the request may cost. */
  needsBody(call: BilledCall): boolean;
  /**
   * Reserves what a request may cost. Returns undefined for a request that costs nothing. Throws ApiError
   * `budget_exceeded`, or an error of the body.
   * @param isBuiltin Whether the built-in runtime gets the request. It keeps the limit itself.
   */
  open(call: BilledCall, body: Buffer | undefined, isBuiltin: boolean): Promise<Bill | undefined>;
}

export interface ResponseSize {
  readonly numBytes: number;
  /** Events of a stream. 0: no stream. */
  readonly numEvents: number;
  /** As the response reported it. undefined: it did not. */
  readonly promptTokens?: number | undefined;
  /** The client left before the end. The server may generate the rest. */
  readonly isAbandoned: boolean;
}

/** One request's reservation. The first of the last four methods ends it. */
export interface Bill {
  /** Identifies the request in its replica. */
  readonly id: string;
  /** Whether a replica may have got the request. */
  readonly isSent: boolean;
  /** Limits the request to what is reserved. Call it when the request is sent. */
  limit(sent: UpstreamRequest, isBuiltin: boolean): UpstreamRequest;
  settle(usage: ReplicaUsage): void;
  /** For a response that reports no usage. Returns what it counts. */
  estimate(response: ResponseSize): ReplicaUsage;
  /** The whole reservation is spent. */
  settleAll(): void;
  /** The request costs nothing. */
  refund(): void;
}

const TIMEOUT_MS = 5_000;
const HTTP_OK = 200;
const HTTP_ERROR = 400;

/** How a request ended for its client. */
export interface BillOutcome {
  readonly bill: Bill;
  readonly usage: ReplicaUsage | undefined;
  /** The usage is right for the prompt alone. */
  readonly isPartial: boolean;
  readonly choice: Pick<Choice, 'replica' | 'upstream'> | undefined;
  /** Status of the replica's response. undefined: it did not respond. */
  readonly status: number | undefined;
  readonly hasClientLeft: boolean;
  readonly response: Pick<ResponseSize, 'numBytes' | 'numEvents'>;
}

/** The outcome of a response with a status of success that no client gets. */
export function unusableOutcome(bill: Bill, choice: BillOutcome['choice'], { usage, numBytes }: Spent): BillOutcome {
  return {
    bill,
    usage,
    isPartial: false,
    choice,
    status: HTTP_OK,
    hasClientLeft: false,
    response: { numBytes, numEvents: 0 },
  };
}

/** What a request has used. */
export interface EndedBill {
  /** As the replica reports it. It may have to be asked. */
  readonly usage: ReplicaUsage | undefined;
  /** Of a request whose client left before the replica reported it. */
  readonly estimate?: ReplicaUsage | undefined;
}

/** Ends a bill. */
export async function endBill({
  bill,
  usage,
  isPartial,
  choice,
  status,
  hasClientLeft,
  response,
}: BillOutcome): Promise<EndedBill> {
  if (usage !== undefined && !isPartial) {
    bill.settle(usage);
    return { usage };
  }
  const hasFailed = status === undefined ? !hasClientLeft : status >= HTTP_ERROR;
  if (hasFailed || choice === undefined || !bill.isSent) {
    bill.refund();
    return { usage };
  }
  if (!choice.replica.isBuiltin) {
    const estimate = bill.estimate({ ...response, promptTokens: usage?.promptTokens, isAbandoned: hasClientLeft });
    return { usage, estimate: hasClientLeft ? estimate : undefined };
  }
  const found = await askUsage(choice, bill.id).catch(() => undefined);
  if (found === undefined) bill.settleAll();
  else bill.settle(found);
  return { usage: found };
}

/** Asks a replica of the built-in runtime for the usage of a request. It responds when the request has ended. */
async function askUsage(
  { replica, upstream }: Pick<Choice, 'replica' | 'upstream'>,
  id: string,
): Promise<ReplicaUsage | undefined> {
  const { rawHeaders, body } = await upstream.send(
    {
      method: 'GET',
      target: ENDED_USAGE_PATH + id,
      headers: ['Host', 'localhost', SECRET_HEADER, replica.secret],
      body: undefined,
    },
    AbortSignal.timeout(TIMEOUT_MS),
  );
  body.flow({ piece: () => {}, end: () => {}, fail: () => {} });
  const text = rawHeader(rawHeaders, USAGE_HEADER);
  return text === undefined ? undefined : parseUsage(text);
}
