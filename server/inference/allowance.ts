import { CapstanError, type PromptSize } from '../../ts';
import { ApiError } from '../base/errors';
import { header, type HttpRequest } from '../http/transport';
import { ALLOWANCE_HEADER, parseAllowance, type ReplicaAllowance, type ReplicaUsage } from '../http/replica-headers';

/**
 * What the gateway allows a request to cost. The replica knows the tokens of the prompt, so it keeps the limit exactly:
 * it lowers the completion tokens to what is left, and refuses a request that cannot be paid.
 */
export class Allowance {
  readonly #allowed: ReplicaAllowance;
  #left: bigint;
  #promptTokens = 0;

  constructor(allowed: ReplicaAllowance) {
    this.#allowed = allowed;
    this.#left = allowed.total;
  }

  static of(request: Pick<HttpRequest, 'headers'>): Allowance | undefined {
    const text = header(request, ALLOWANCE_HEADER.toLowerCase());
    if (text === undefined) return undefined;
    const allowed = parseAllowance(text);
    if (allowed === undefined)
      throw new ApiError('malformed_request', `${ALLOWANCE_HEADER}: expected id, total and prices`);
    return new Allowance(allowed);
  }

  get id(): string {
    return this.#allowed.id;
  }

  /** Pays for a prompt, and for as many completion tokens of each choice as are left. For `CallContext.onPrompt`. */
  readonly onPrompt = ({ promptTokens, numChoices, maxTokens }: PromptSize): number => {
    const { completion } = this.#allowed;
    this.takePrompt(promptTokens);
    const perToken = completion * BigInt(numChoices);
    const payable = perToken === 0n ? BigInt(maxTokens) : this.#left / perToken;
    const limit = payable < BigInt(maxTokens) ? Number(payable) : maxTokens;
    if (limit < 1 && maxTokens > 0) throw exceeded();
    this.#left -= perToken * BigInt(limit);
    return limit;
  };

  /** Pays for tokens that are computed without a completion. */
  takePrompt(promptTokens: number): void {
    const cost = this.#allowed.prompt * BigInt(promptTokens);
    if (cost > this.#left) throw exceeded();
    this.#left -= cost;
    this.#promptTokens += promptTokens;
  }

  /** Splits the tokens of a request that has ended. */
  usageOf(numTokens: number): ReplicaUsage {
    const promptTokens = Math.min(numTokens, this.#promptTokens);
    return { promptTokens, completionTokens: numTokens - promptTokens, cachedTokens: 0 };
  }
}

function exceeded(): CapstanError {
  const cause = new ApiError('budget_exceeded', 'The budget does not cover this prompt and one completion token');
  return new CapstanError('aborted', cause.message, { cause });
}
