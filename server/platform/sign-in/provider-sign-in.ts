import { timingSafeEqual } from 'node:crypto';
import type { Log } from 'capstan/internal';
import type { From } from '../accounts/actor';
import type { NewSession } from '../accounts/sessions';
import { tokenHash } from '../accounts/tokens';
import { type Clock, SYSTEM_CLOCK } from '../control/clock';
import { ServiceError } from '../store/errors';
import type { ServiceStore } from '../store/store';
import { ProviderFault } from './provider-fault';
import type { DueIdentity } from './identities';
import { providerFetch, type ProviderFetch } from './provider-fetch';
import { ProviderProtocol, ProviderRefusal, reasonOf, type SignInChecks } from './provider-protocol';
import type { ProviderClient } from './providers';

export interface ProviderSignInOptions {
  store: Pick<
    ServiceStore,
    | 'readProviderClient'
    | 'sealSignIn'
    | 'openSignIn'
    | 'takeSignIn'
    | 'signInWithProvider'
    | 'findProviderSession'
    | 'dueIdentities'
    | 'confirmIdentity'
    | 'endIdentity'
    | 'postponeProvider'
  >;
  log: Log;
  /** Where browsers reach the console. */
  origin: string;
  now: () => number;
  clock?: Clock;
  fetch?: ProviderFetch;
}

/** A sign-in on its way: in a cookie of the browser, encrypted. */
interface PendingSignIn extends SignInChecks {
  providerId: string;
  returnTo: string;
  expiresAt: number;
}

/** Path of the console's page that receives the response of a provider. */
const CALLBACK_PATH = '/sign-in/callback';
/** How long a user may take at the provider. */
export const PENDING_MS = 10 * 60_000;
const POLL_MS = 30_000;
const MAX_RETURN_LENGTH = 1_000;
/** A path of the console. Two slashes, or a backslash, would name another host. */
const PATH = /^\/(?![/\\])[!-[\]-~]*$/;

/** Signs users in at identity providers, and asks the providers again while the users are signed in. */
export class ProviderSignIn {
  readonly #options: ProviderSignInOptions;
  readonly #protocol: ProviderProtocol;
  readonly #clock: Clock;
  #polling: Promise<void> = Promise.resolve();
  #cancel: (() => void) | undefined;
  #isClosed = false;

  constructor(options: ProviderSignInOptions) {
    this.#options = options;
    this.#clock = options.clock ?? SYSTEM_CLOCK;
    this.#protocol = new ProviderProtocol(options.fetch ?? providerFetch(), options.now);
  }

  /**
   * Returns the redirect address to register at a provider. It names the provider, so that no provider can lead the
   * browser to another one and get its code (mix-up attack, RFC 9700).
   */
  redirectUri({ id, hasOwnRedirect }: Pick<ProviderClient, 'id' | 'hasOwnRedirect'>): string {
    return `${this.#options.origin}${CALLBACK_PATH}${hasOwnRedirect ? `/${id}` : ''}`;
  }

  /** @throws ServiceError `invalid_argument` if the metadata of the issuer cannot be read */
  check(provider: { issuer: string; clientId: string }): Promise<void> {
    return this.#protocol.check(provider);
  }

  /**
   * Begins a sign-in. `pending` goes into a cookie of the browser.
   * @throws ServiceError `not_found`, ProviderFault
   */
  async begin(providerId: string, returnTo = '/'): Promise<{ url: string; state: string; pending: string }> {
    const { store, now } = this.#options;
    const provider = await store.readProviderClient(providerId);
    const { url, checks } = await this.#call(provider, () =>
      this.#protocol.authorizationUrl(provider, this.redirectUri(provider)),
    );
    const pending: PendingSignIn = {
      ...checks,
      providerId,
      returnTo: isPath(returnTo) ? returnTo : '/',
      expiresAt: now() + PENDING_MS,
    };
    return { url, state: checks.state, pending: await store.sealSignIn(JSON.stringify(pending)) };
  }

  /**
   * Ends a sign-in with the parameters that the provider sent. A second response is refused.
   * @param provider The provider that the redirect URI of the response names.
   * @param pending The cookie of {@link begin}.
   * @param replaced The session cookie of the request. Its session ends.
   * @throws ServiceError `gone`, `sign_in_refused`, ProviderFault
   */
  async finish(
    { provider: named, ...response }: Readonly<Record<string, string>>,
    pending: string | undefined,
    from: From,
    replaced?: string,
  ): Promise<{ session: NewSession; returnTo: string }> {
    const { store, log } = this.#options;
    const begun = await this.#pendingOf(pending);
    if (!isSame(begun.state, response.state ?? ''))
      throw new ServiceError('sign_in_refused', 'the response belongs to another sign-in: sign in again');
    if (!(await store.takeSignIn(begun.state, begun.expiresAt))) throw usedSignIn();
    const provider = await store.readProviderClient(begun.providerId);
    if (named !== (provider.hasOwnRedirect ? provider.id : undefined)) {
      log.warn(
        { provider: provider.name, redirectOf: named },
        'a response came to the redirect URI of another provider',
      );
      throw new ServiceError('sign_in_refused', 'the response is from another identity provider: sign in again');
    }
    const { claims, idToken, refreshToken } = await this.#call(provider, () =>
      this.#protocol.exchange(provider, this.redirectUri(provider), new URLSearchParams(response), begun),
    );
    const signedIn = await store
      .signInWithProvider(provider.id, claims, { idToken, refreshToken }, from, replaced)
      .catch((error: unknown) => {
        if (error instanceof ServiceError)
          log.warn({ provider: provider.name, reason: error.message }, 'sign-in with an identity provider refused');
        throw error;
      });
    log.info({ provider: provider.name, userId: signedIn.userId }, 'signed in with an identity provider');
    return { session: signedIn, returnTo: begun.returnTo };
  }

  /** Returns the address that ends the session at the provider, if the session began there and it has one. */
  async logoutUrl(idHash: string): Promise<string | undefined> {
    const { store, log, origin } = this.#options;
    let provider: string | undefined;
    try {
      const found = await store.findProviderSession(idHash);
      if (found === undefined) return undefined;
      provider = found.provider.name;
      return await this.#protocol.logoutUrl(found.provider, found.idToken, `${origin}/sign-in`);
    } catch (error) {
      // The session in the console has ended already.
      log.warn({ provider, reason: reasonOf(error) }, 'cannot read the identity provider');
      return undefined;
    }
  }

  /** Begins to ask the providers. */
  watch(): void {
    this.#schedule();
  }

  /** Asks the providers about all users whose time has come. Never rejects. */
  poll(): Promise<void> {
    this.#polling = this.#polling.then(() => this.#poll());
    return this.#polling;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancel?.();
    await this.#polling;
  }

  #schedule(): void {
    if (this.#isClosed) return;
    this.#cancel = this.#clock.after(POLL_MS, () => void this.poll().then(() => this.#schedule()));
  }

  async #poll(): Promise<void> {
    const { store, log } = this.#options;
    try {
      const due = this.#isClosed ? [] : await store.dueIdentities();
      const polls = await Promise.allSettled(due.map((identities) => this.#pollProvider(identities)));
      for (const poll of polls) if (poll.status === 'rejected') throw poll.reason;
    } catch (error) {
      log.warn({ reason: (error as Error).message }, 'cannot read the users of identity providers, retrying');
    }
  }

  /** Stops at the first fault, because each request to a provider that hangs takes long. */
  async #pollProvider(identities: readonly DueIdentity[]): Promise<void> {
    for (const due of identities) if (this.#isClosed || !(await this.#refresh(due))) return;
  }

  /** Returns whether the provider has answered. */
  async #refresh(due: DueIdentity): Promise<boolean> {
    const { store, log } = this.#options;
    const provider = due.provider.name;
    try {
      const { claims, refreshToken } = await this.#protocol.refresh(due.provider, due.subject, due.refreshToken);
      const reason = await store.confirmIdentity(claims, refreshToken, due.confirmedAt);
      if (reason !== undefined) log.info({ provider, reason }, 'a user may no longer sign in');
    } catch (error) {
      const reason = reasonOf(error);
      if (error instanceof ProviderRefusal) {
        log.info({ provider, reason }, 'the identity provider no longer confirms a user');
        await store.endIdentity(due, reason);
      } else {
        log.warn({ provider, reason }, 'the identity provider does not respond, retrying in a minute');
        await store.postponeProvider(due);
        return false;
      }
    }
    return true;
  }

  async #pendingOf(sealed: string | undefined): Promise<PendingSignIn> {
    const text = sealed === undefined ? undefined : await this.#options.store.openSignIn(sealed);
    const pending = text === undefined ? undefined : (JSON.parse(text) as PendingSignIn);
    if (pending === undefined || pending.expiresAt <= this.#options.now()) throw usedSignIn();
    return pending;
  }

  async #call<T>({ name }: ProviderClient, run: () => Promise<T>): Promise<T> {
    const { log } = this.#options;
    try {
      return await run();
    } catch (error) {
      const reason = reasonOf(error);
      log.warn({ provider: name, reason }, 'sign-in with an identity provider failed');
      if (error instanceof ProviderRefusal) throw new ServiceError('sign_in_refused', `${name}: ${reason}`);
      // The reason may name hosts of the network, and the caller has not signed in.
      throw new ProviderFault(
        `${name} does not respond, or its settings are wrong: an administrator finds the reason in the log`,
      );
    }
  }
}

function usedSignIn(): ServiceError {
  return new ServiceError('gone', 'this sign-in was used or has expired: sign in again');
}

function isPath(text: string): boolean {
  return text.length <= MAX_RETURN_LENGTH && PATH.test(text);
}

function isSame(a: string, b: string): boolean {
  return timingSafeEqual(Buffer.from(tokenHash(a)), Buffer.from(tokenHash(b)));
}
