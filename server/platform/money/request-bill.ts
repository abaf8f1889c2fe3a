import { randomBytes } from 'node:crypto';
import { ALLOWANCE_HEADER, formatAllowance, type ReplicaUsage } from 'capstan/internal';
import type { Bill, ResponseSize } from '../gateway/billing';
import type { UpstreamRequest } from '../gateway/request-head';
import { unlimited } from '../gateway/token-meter';
import { outputTokensIn, promptTokensIn } from '../gateway/usage-estimate';
import { costOf, highestInput, smaller, toNanos, toPicos } from './amounts';
import type { OutputLimit } from './output-limit';
import type { ModelPrice } from './money-rows';

/** A prompt of the built-in runtime has at most about a token per byte, and those of its template. */
const TEMPLATE_TOKENS = 1_024;

/** Receives the cost of a request. */
export type OnCost = (cost: bigint, usage: ReplicaUsage, isEstimate: boolean) => void;

/** What a request may cost at most, and what one completion token costs it. */
export class RequestCost {
  readonly price: ModelPrice;
  readonly promptTokens: number;
  readonly #output: OutputLimit | undefined;
  readonly #isBuiltin: boolean;

  constructor(price: ModelPrice, output: OutputLimit | undefined, numBytes: number, isBuiltin: boolean) {
    this.price = price;
    this.#output = output;
    this.#isBuiltin = isBuiltin;
    this.promptTokens = isBuiltin ? numBytes + TEMPLATE_TOKENS : promptTokensIn(numBytes);
  }

  /** Tokens of each output that the request may generate. No limit of a request exceeds that of the price. */
  get maxTokens(): number {
    const { maxOutputTokens } = this.price;
    return Math.min(this.#output?.maxTokens ?? maxOutputTokens, maxOutputTokens);
  }

  get numOutputs(): number {
    return this.#output?.numOutputs ?? 0;
  }

  /** In nanos. */
  get highest(): bigint {
    return toNanos(this.#promptPicos(this.promptTokens) + this.#outputPicos(this.maxTokens));
  }

  /** The least that is worth an attempt: one token of each output. The built-in runtime counts its prompt itself. */
  get lowest(): bigint {
    return toNanos(
      this.#promptPicos(this.#isBuiltin ? 1 : this.promptTokens) + this.#outputPicos(Math.min(1, this.maxTokens)),
    );
  }

  /** Returns the tokens of each output that an amount pays. */
  payableTokens(nanos: bigint): number {
    const perToken = this.#outputPicos(1);
    if (perToken === 0n) return this.maxTokens;
    const payable = (toPicos(nanos) - this.#promptPicos(this.promptTokens)) / perToken;
    return Number(smaller(payable > 0n ? payable : 0n, BigInt(this.maxTokens)));
  }

  #promptPicos(promptTokens: number): bigint {
    return highestInput(this.price) * BigInt(promptTokens);
  }

  #outputPicos(maxTokens: number): bigint {
    return this.price.output * BigInt(this.numOutputs) * BigInt(maxTokens);
  }
}

export interface BilledRequest {
  readonly cost: RequestCost;
  /** undefined: its body was not read. */
  readonly output: OutputLimit | undefined;
  /** undefined: no budget limits it. */
  readonly reserved: bigint | undefined;
  readonly hasOutput: boolean;
}

/** A request that has reserved its cost, or one that no budget limits. */
export class RequestBill implements Bill {
  readonly id = randomBytes(16).toString('hex');
  readonly #cost: RequestCost;
  readonly #output: OutputLimit | undefined;
  /** undefined: no budget limits it. */
  readonly #reserved: bigint | undefined;
  readonly #hasOutput: boolean;
  readonly #onCost: OnCost;
  readonly #onRefund: () => void;
  #isOpen = true;
  isSent = false;

  constructor(
    { cost, output, reserved, hasOutput }: BilledRequest,
    { onCost, onRefund }: { onCost: OnCost; onRefund: () => void },
  ) {
    this.#cost = cost;
    this.#output = output;
    this.#reserved = reserved;
    this.#hasOutput = hasOutput;
    this.#onCost = onCost;
    this.#onRefund = onRefund;
  }

  limit(sent: UpstreamRequest, isBuiltin: boolean): UpstreamRequest {
    const limited = this.#limited(sent, isBuiltin);
    this.isSent = true;
    return limited;
  }

  #limited(sent: UpstreamRequest, isBuiltin: boolean): UpstreamRequest {
    if (isBuiltin) return { ...sent, headers: [...sent.headers, ALLOWANCE_HEADER, this.#allowance()] };
    if (this.#reserved === undefined || this.#output === undefined || this.#output.numOutputs === 0) return sent;
    return { ...sent, body: this.#output.withLimit(sent.body as Buffer, this.#cost.payableTokens(this.#reserved)) };
  }

  settle(usage: ReplicaUsage): void {
    this.#end(costOf(this.#cost.price, usage), usage, false);
  }

  estimate(response: ResponseSize): ReplicaUsage {
    const { promptTokens = this.#cost.promptTokens } = response;
    const usage = {
      promptTokens,
      cachedTokens: 0,
      completionTokens: this.#hasOutput ? this.#estimatedTokens(response) : 0,
    };
    const cost = costOf(this.#cost.price, usage);
    this.#end(this.#reserved === undefined ? cost : smaller(cost, this.#reserved), usage, true);
    return usage;
  }

  settleAll(): void {
    const usage = { promptTokens: 0, cachedTokens: 0, completionTokens: 0 };
    this.#end(this.#reserved ?? 0n, usage, true);
  }

  refund(): void {
    if (this.#isOpen) this.#onRefund();
    this.#isOpen = false;
  }

  #estimatedTokens(response: ResponseSize): number {
    // Many servers finish a response that is not streamed, even after its client has left.
    if (response.isAbandoned && this.#reserved !== undefined && this.#output?.isStream === false)
      return this.#cost.numOutputs * this.#cost.payableTokens(this.#reserved);
    return outputTokensIn(response);
  }

  #end(cost: bigint, usage: ReplicaUsage, isEstimate: boolean): void {
    if (this.#isOpen) this.#onCost(cost, usage, isEstimate);
    this.#isOpen = false;
  }

  #allowance(): string {
    if (this.#reserved === undefined) return unlimited(this.id);
    const { price } = this.#cost;
    return formatAllowance({
      id: this.id,
      total: toPicos(this.#reserved),
      prompt: highestInput(price),
      completion: price.output,
    });
  }
}
