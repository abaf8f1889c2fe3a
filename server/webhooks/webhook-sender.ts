import { SYSTEM_CLOCK, type Clock } from '../service/clock';
import type { WebhookAttempt, WebhookMessage } from '../service/webhook-queue';
import { ServiceError } from '../service/errors';
import type { WebhookStore } from '../service/store-webhooks';
import { packageVersion } from '../version';
import { within } from '../within';
import { type Resolve, resolveByDns, resolveEndpoint } from './endpoint';
import { post } from './post';
import { signatureHeaders } from './sign';

export interface WebhookSenderOptions {
  store: Pick<
    WebhookStore,
    'queueWebhookEvents' | 'takeWebhookMessages' | 'endWebhookAttempt' | 'pruneWebhookDeliveries'
  >;
  log: { warn(fields: object, message: string): void; info(fields: object, message: string): void };
  /** Whether messages may go to addresses that are not on the public internet. */
  allowsPrivate: boolean;
  resolve?: Resolve;
  clock?: Clock;
  /** For tests: default 10 s. */
  timeoutMs?: number;
}

/** Of one attempt, its look-up included. */
const TIMEOUT_MS = 10_000;
/** How often is looked for events, and for messages that are due. */
const LOOK_MS = 1_000;
const PRUNE_MS = 600_000;
/** Attempts under way at once, to as many webhooks: one that is slow holds up no other. */
const MAX_OPEN = 16;
/** An end waits this long for attempts under way; what is cut off is attempted again after the next start. */
const CLOSE_MS = 1_000;

/** Sends what happens to the webhooks that want to hear of it. All that it knows is in the database, so that a service that ends at any moment goes on where it was. */
export class WebhookSender {
  readonly #options: WebhookSenderOptions;
  readonly #clock: Clock;
  /** By webhook. */
  readonly #open = new Map<string, Promise<void>>();
  readonly #closing = new AbortController();
  #next: { at: number; cancel: () => void } | undefined;
  #looking: Promise<void> = Promise.resolve();
  #prunedAt = 0;
  #isFailing = false;

  constructor(options: WebhookSenderOptions) {
    this.#options = options;
    this.#clock = options.clock ?? SYSTEM_CLOCK;
  }

  start(): void {
    this.#schedule(0);
  }

  /** Looks for what is to be sent, and begins to send it. Never rejects. */
  look(): Promise<void> {
    this.#looking = this.#looking.then(() => this.#look());
    return this.#looking;
  }

  /** @throws ServiceError `invalid_argument` for a URL that is none, or leads where messages may not go. */
  async check(url: string): Promise<void> {
    await Promise.race([this.#resolve(url), aborted(AbortSignal.timeout(this.#timeoutMs))]).catch((error: unknown) => {
      throw error instanceof ServiceError
        ? error
        : new ServiceError('invalid_argument', 'url: its address could not be found in time');
    });
  }

  /** One attempt, at once. */
  async attempt(message: Pick<WebhookMessage, 'id' | 'url' | 'secrets' | 'payload'>): Promise<WebhookAttempt> {
    const startedAt = this.#clock.now();
    const startedMs = performance.now();
    const outcome = await this.#post(message, startedAt).then(
      (status) => ({ status, error: isGood(status) ? null : `answered ${status}` }),
      (error: unknown) => ({ status: null, error: reasonOf(error) }),
    );
    return { at: startedAt, durationMs: Math.round(performance.now() - startedMs), ...outcome };
  }

  /** When nothing is under way. */
  async settled(): Promise<void> {
    await this.#looking;
    while (this.#open.size > 0) await Promise.all(this.#open.values());
  }

  async close(): Promise<void> {
    this.#closing.abort();
    this.#next?.cancel();
    await within(CLOSE_MS, this.settled());
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
    const ended = new AbortController();
    const timer = setTimeout(() => ended.abort(), this.#timeoutMs).unref();
    const signal = AbortSignal.any([ended.signal, this.#closing.signal]);
    try {
      const endpoint = await Promise.race([this.#resolve(url), aborted(signal)]);
      return await post(
        endpoint,
        { ...signatureHeaders(secrets, id, payload, nowMs), 'user-agent': `capstan/${packageVersion()}` },
        payload,
        signal,
      );
    } catch (error) {
      throw ended.signal.aborted ? new Error(`no answer within ${this.#timeoutMs / 1000} s`) : error;
    } finally {
      clearTimeout(timer);
    }
  }

  async #look(): Promise<void> {
    if (this.#closing.signal.aborted) return;
    const { store, log } = this.#options;
    try {
      await store.queueWebhookEvents();
      const free = MAX_OPEN - this.#open.size;
      for (const message of free === 0 ? [] : await store.takeWebhookMessages([...this.#open.keys()], free))
        this.#send(message);
      await this.#prune();
      if (this.#isFailing) log.info({}, 'webhooks can be sent again');
      this.#isFailing = false;
    } catch (error) {
      // Once per outage.
      if (!this.#isFailing)
        log.warn(
          { reason: (error as Error).message },
          'what webhooks are to be sent could not be read; it is tried again',
        );
      this.#isFailing = true;
    }
    this.#schedule(LOOK_MS);
  }

  #send(message: WebhookMessage): void {
    const sending = this.attempt(message)
      .then(async (attempt) => {
        // Cut off by the end of the service: as if it had not begun.
        if (this.#closing.signal.aborted && attempt.status === null) return;
        const disabled = await this.#options.store.endWebhookAttempt(message.id, attempt);
        if (disabled !== undefined)
          this.#options.log.warn({ webhook: message.webhookId, reason: disabled }, 'a webhook is switched off');
      })
      .catch((error: unknown) => {
        // It is attempted again once its lease is over.
        this.#options.log.warn(
          { webhook: message.webhookId, reason: (error as Error).message },
          'the outcome of a webhook could not be written',
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

  /** A look after that time, or earlier. */
  #schedule(ms: number): void {
    const at = this.#clock.now() + ms;
    if (this.#closing.signal.aborted || (this.#next !== undefined && this.#next.at <= at)) return;
    this.#next?.cancel();
    const cancel = this.#clock.after(ms, () => {
      this.#next = undefined;
      void this.look();
    });
    this.#next = { at, cancel };
  }
}

function isGood(status: number): boolean {
  return status >= 200 && status < 300;
}

/** For people, and never what an answer held. */
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
