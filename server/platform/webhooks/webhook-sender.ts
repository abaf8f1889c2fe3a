import { packageVersion, withTimeout } from 'capstan/internal';
import { SYSTEM_CLOCK, type Clock } from '../control/clock';
import type { WebhookAttempt, WebhookMessage } from './webhook-queue';
import { ServiceError } from '../store/errors';
import type { WebhookStore } from '../store/store-webhooks';
import { type Resolve, resolveByDns, resolveEndpoint } from '../outbound/endpoint';
import { post } from './post';
import { signatureHeaders } from './sign';

export interface WebhookSenderOptions {
  store: Pick<
    WebhookStore,
    'queueWebhookEvents' | 'takeWebhookMessages' | 'endWebhookAttempt' | 'pruneWebhookDeliveries'
  >;
  log: { warn(fields: object, message: string): void; info(fields: object, message: string): void };
  /** Whether messages may go to private addresses. */
  allowsPrivate: boolean;
  resolve?: Resolve;
  clock?: Clock;
  /** Default 10 s. */
  timeoutMs?: number;
}

/** Timeout of one attempt, including the DNS lookup. */
const TIMEOUT_MS = 10_000;
/** Poll interval for new events and due messages. */
const POLL_MS = 1_000;
const PRUNE_MS = 600_000;
/** Concurrent attempts, at most one per webhook. */
const MAX_OPEN = 16;
/** How long a shutdown waits for open attempts. Aborted attempts are repeated after the next start. */
const CLOSE_MS = 1_000;

/** Sends events to webhooks. Its state is in the database, so it continues after a crash. */
export class WebhookSender {
  readonly #options: WebhookSenderOptions;
  readonly #clock: Clock;
  /** Open attempts by webhook id. */
  readonly #open = new Map<string, Promise<void>>();
  readonly #closing = new AbortController();
  #next: { at: number; cancel: () => void } | undefined;
  #polling: Promise<void> = Promise.resolve();
  #prunedAt = 0;
  #isFailing = false;

  constructor(options: WebhookSenderOptions) {
    this.#options = options;
    this.#clock = options.clock ?? SYSTEM_CLOCK;
  }

  start(): void {
    this.#schedule(0);
  }

  /** Queues new events and starts to send due messages. Never rejects. */
  poll(): Promise<void> {
    this.#polling = this.#polling.then(() => this.#poll());
    return this.#polling;
  }

  /** @throws ServiceError `invalid_argument` if the URL is invalid or does not resolve to an allowed address. */
  async check(url: string): Promise<void> {
    await Promise.race([this.#resolve(url), aborted(AbortSignal.timeout(this.#timeoutMs))]).catch((error: unknown) => {
      throw error instanceof ServiceError
        ? error
        : new ServiceError('invalid_argument', 'url: timeout while resolving the host name');
    });
  }

  /** Makes one attempt. Never rejects. */
  async attempt(message: Pick<WebhookMessage, 'id' | 'url' | 'secrets' | 'payload'>): Promise<WebhookAttempt> {
    const startedAt = this.#clock.now();
    const startedMs = performance.now();
    const outcome = await this.#post(message, startedAt).then(
      (status) => ({ status, error: isSuccess(status) ? null : `status ${status}` }),
      (error: unknown) => ({ status: null, error: reasonOf(error) }),
    );
    return { at: startedAt, durationMs: Math.round(performance.now() - startedMs), ...outcome };
  }

  /** Resolves when no attempt is open. */
  async settled(): Promise<void> {
    await this.#polling;
    while (this.#open.size > 0) await Promise.all(this.#open.values());
  }

  async close(): Promise<void> {
    this.#closing.abort();
    this.#next?.cancel();
    await withTimeout(CLOSE_MS, this.settled());
  }

  get #timeoutMs(): number {
    return this.#options.timeoutMs ?? TIMEOUT_MS;
  }

  #resolve(url: string) {
    const { resolve = resolveByDns, allowsPrivate } = this.#options;
    return resolveEndpoint(url, { resolve, allowsPrivate });
  }

  async #post(
    { id, url, secrets, payload }: Pick<WebhookMessage, 'id' | 'url' | 'secrets' | 'payload'>,
    nowMs: number,
  ): Promise<number> {
    const timeout = new AbortController();
    const timer = setTimeout(() => timeout.abort(), this.#timeoutMs).unref();
    const signal = AbortSignal.any([timeout.signal, this.#closing.signal]);
    try {
      const endpoint = await Promise.race([this.#resolve(url), aborted(signal)]);
      return await post(
        endpoint,
        { ...signatureHeaders(secrets, id, payload, nowMs), 'user-agent': `capstan/${packageVersion()}` },
        payload,
        signal,
      );
    } catch (error) {
      throw timeout.signal.aborted ? new Error(`no response within ${this.#timeoutMs / 1000} s`) : error;
    } finally {
      clearTimeout(timer);
    }
  }

  async #poll(): Promise<void> {
    if (this.#closing.signal.aborted) return;
    const { store, log } = this.#options;
    try {
      await store.queueWebhookEvents();
      const free = MAX_OPEN - this.#open.size;
      for (const message of free === 0 ? [] : await store.takeWebhookMessages([...this.#open.keys()], free))
        this.#send(message);
      await this.#prune();
      if (this.#isFailing) log.info({}, 'webhook messages can be read again');
      this.#isFailing = false;
    } catch (error) {
      // Log once per outage.
      if (!this.#isFailing)
        log.warn({ reason: (error as Error).message }, 'cannot read webhook messages, retrying every second');
      this.#isFailing = true;
    }
    this.#schedule(POLL_MS);
  }

  #send(message: WebhookMessage): void {
    const sending = this.attempt(message)
      .then(async (attempt) => {
        // Aborted by the shutdown: do not count the attempt.
        if (this.#closing.signal.aborted && attempt.status === null) return;
        const disabled = await this.#options.store.endWebhookAttempt(message.id, attempt);
        if (disabled !== undefined)
          this.#options.log.warn({ webhook: message.webhookId, reason: disabled }, 'webhook disabled');
      })
      .catch((error: unknown) => {
        // The message is due again when its lease ends.
        this.#options.log.warn(
          { webhook: message.webhookId, reason: (error as Error).message },
          'cannot save the attempt of a webhook message',
        );
      })
      .finally(() => {
        this.#open.delete(message.webhookId);
        this.#schedule(0);
      });
    this.#open.set(message.webhookId, sending);
  }

  async #prune(): Promise<void> {
    const nowMs = this.#clock.now();
    if (nowMs - this.#prunedAt < PRUNE_MS) return;
    this.#prunedAt = nowMs;
    await this.#options.store.pruneWebhookDeliveries();
  }

  /** Schedules a poll in `ms`, unless an earlier one is scheduled. */
  #schedule(ms: number): void {
    const at = this.#clock.now() + ms;
    if (this.#closing.signal.aborted || (this.#next !== undefined && this.#next.at <= at)) return;
    this.#next?.cancel();
    const cancel = this.#clock.after(ms, () => {
      this.#next = undefined;
      void this.poll();
    });
    this.#next = { at, cancel };
  }
}

function isSuccess(status: number): boolean {
  return status >= 200 && status < 300;
}

/** Returns a message for users. It never contains response data. */
function reasonOf(error: unknown): string {
  const { message, code } = error as NodeJS.ErrnoException;
  return (error instanceof ServiceError ? message.replace(/^url: /, '') : (code ?? message)).slice(0, 300);
}

function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    if (signal.aborted) reject(signal.reason as Error);
    signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true });
  });
}
