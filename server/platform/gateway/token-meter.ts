import { randomBytes } from 'node:crypto';
import { ALLOWANCE_HEADER, formatAllowance, type ReplicaUsage } from 'capstan/internal';
import type { Bill, ResponseSize } from './billing';
import type { UpstreamRequest } from './request-head';
import { outputTokensIn, promptTokensIn } from './usage-estimate';

const NO_LIMIT = 10n ** 30n;

/**
 * Counts the tokens of a request that costs no money: the limits of its key hold also if its client leaves before the
 * response reports them.
 */
export class TokenMeter implements Bill {
  readonly id = randomBytes(16).toString('hex');
  readonly #numBodyBytes: number;
  isSent = false;

  constructor(numBodyBytes: number) {
    this.#numBodyBytes = numBodyBytes;
  }

  limit(sent: UpstreamRequest, isBuiltin: boolean): UpstreamRequest {
    this.isSent = true;
    return isBuiltin ? { ...sent, headers: [...sent.headers, ALLOWANCE_HEADER, unlimited(this.id)] } : sent;
  }

  estimate({ promptTokens = promptTokensIn(this.#numBodyBytes), ...response }: ResponseSize): ReplicaUsage {
    return { promptTokens, cachedTokens: 0, completionTokens: outputTokensIn(response) };
  }

  settle(): void {}
  settleAll(): void {}
  refund(): void {}
}

/** An allowance with which the built-in runtime counts the tokens of a request, and limits nothing. */
export function unlimited(id: string): string {
  return formatAllowance({ id, total: NO_LIMIT, prompt: 0n, completion: 0n });
}
