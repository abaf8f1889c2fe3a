import type * as OpenidClient from 'openid-client' with { 'resolution-mode': 'import' };
import { ServiceError } from '../store/errors';
import type { ProviderClaims } from './identities';
import type { ProviderFetch } from './provider-fetch';
import { checkIssuer, type ProviderClient } from './providers';

/** What the browser takes to the provider, and the service expects in the response. */
export interface SignInChecks {
  state: string;
  nonce: string;
  codeVerifier: string;
}

/** A user that the provider has confirmed. */
export interface Confirmation {
  claims: ProviderClaims;
  idToken: string | null;
  refreshToken: string | null;
}

/** The provider has answered, and refuses. Other errors mean that it does not answer. */
export class ProviderRefusal extends Error {}

const TIMEOUT_S = 10;
/** Metadata and keys of a provider are read again after this time. */
const METADATA_MS = 10 * 60_000;
const MAX_TEXT = 200;
/** The client's message for an error of the transport. The cause says more. */
const WRAPPED = 'something went wrong';
const USER_ERRORS = new Set(['invalid_grant', 'access_denied', 'consent_required', 'interaction_required']);
/** Codes of the client for a response whose content is wrong. At a sign-in they refuse the user. */
const FAILED_CHECKS = new Set([
  'OAUTH_INVALID_RESPONSE',
  'OAUTH_JSON_ATTRIBUTE_COMPARISON_FAILED',
  'OAUTH_JWT_CLAIM_COMPARISON_FAILED',
  'OAUTH_JWT_TIMESTAMP_CHECK_FAILED',
]);

/** OpenID Connect with one or more providers: authorization code with PKCE, verified ID tokens, refresh and logout. */
export class ProviderProtocol {
  readonly #fetch: ProviderFetch;
  readonly #now: () => number;
  /** By provider id. */
  readonly #known = new Map<string, { rev: number; at: number; config: Promise<OpenidClient.Configuration> }>();

  constructor(fetch: ProviderFetch, now: () => number) {
    this.#fetch = fetch;
    this.#now = now;
  }

  /** Reads the metadata of a provider. @throws ServiceError `invalid_argument` */
  async check(provider: Pick<ProviderClient, 'issuer' | 'clientId'>): Promise<void> {
    try {
      const { token_endpoint: token, authorization_endpoint: authorization } = (
        await this.#discover({ ...provider, clientSecret: null })
      ).serverMetadata();
      if (token === undefined || authorization === undefined)
        throw new Error('its metadata names no authorization endpoint or no token endpoint');
    } catch (error) {
      throw new ServiceError('invalid_argument', `issuer: ${reasonOf(error)}`);
    }
  }

  /** Returns the address that begins a sign-in. */
  async authorizationUrl(
    provider: ProviderClient,
    redirectUri: string,
  ): Promise<{ url: string; checks: SignInChecks }> {
    const client = await openidClient();
    const config = await this.#configOf(provider);
    const checks = {
      state: client.randomState(),
      nonce: client.randomNonce(),
      codeVerifier: client.randomPKCECodeVerifier(),
    };
    const url = client.buildAuthorizationUrl(config, {
      ...provider.params,
      redirect_uri: redirectUri,
      response_type: 'code',
      scope: provider.scopes.join(' '),
      state: checks.state,
      nonce: checks.nonce,
      code_challenge: await client.calculatePKCECodeChallenge(checks.codeVerifier),
      code_challenge_method: 'S256',
    });
    return { url: url.href, checks };
  }

  /** Exchanges the code of an authorization response. @throws ProviderRefusal, or Error if the provider fails */
  async exchange(
    provider: ProviderClient,
    redirectUri: string,
    response: URLSearchParams,
    checks: SignInChecks,
  ): Promise<Confirmation> {
    const client = await openidClient();
    const config = await this.#configOf(provider);
    const url = new URL(redirectUri);
    url.search = response.toString();
    return this.#confirmed(provider, config, () =>
      client.authorizationCodeGrant(config, url, {
        expectedState: checks.state,
        expectedNonce: checks.nonce,
        pkceCodeVerifier: checks.codeVerifier,
        idTokenExpected: true,
      }),
    );
  }

  /** Asks the provider to confirm a user again. @throws ProviderRefusal, or Error if the provider fails */
  async refresh(provider: ProviderClient, subject: string, refreshToken: string): Promise<Confirmation> {
    const client = await openidClient();
    const config = await this.#configOf(provider);
    return this.#confirmed(provider, config, () => client.refreshTokenGrant(config, refreshToken), subject);
  }

  /** Returns the address of the logout at the provider, or undefined if it has none. */
  async logoutUrl(provider: ProviderClient, idToken: string | null, returnTo: string): Promise<string | undefined> {
    const client = await openidClient();
    const config = await this.#configOf(provider);
    if (config.serverMetadata().end_session_endpoint === undefined) return undefined;
    return client.buildEndSessionUrl(config, {
      post_logout_redirect_uri: returnTo,
      ...(idToken === null ? {} : { id_token_hint: idToken }),
    }).href;
  }

  async #confirmed(
    provider: ProviderClient,
    config: OpenidClient.Configuration,
    grant: () => Promise<OpenidClient.TokenEndpointResponse & OpenidClient.TokenEndpointResponseHelpers>,
    knownSubject?: string,
  ): Promise<Confirmation> {
    const client = await openidClient();
    try {
      const tokens = await grant();
      const idClaims: Readonly<Record<string, unknown>> = tokens.claims() ?? {};
      const subject = (idClaims.sub as string | undefined) ?? knownSubject;
      if (subject === undefined) throw new ProviderRefusal('the response has no ID token');
      if (knownSubject !== undefined && subject !== knownSubject)
        throw new ProviderRefusal('the refreshed ID token is for another user');
      const hasUserInfo = config.serverMetadata().userinfo_endpoint !== undefined;
      const userInfo = hasUserInfo ? await this.#userInfo(client, config, tokens.access_token, subject) : {};
      if (!hasUserInfo && tokens.id_token === undefined)
        throw new Error('the provider sends neither an ID token nor user information at a refresh');
      return {
        claims: toClaims(provider, subject, joined(userInfo, idClaims)),
        idToken: tokens.id_token ?? null,
        refreshToken: tokens.refresh_token ?? null,
      };
    } catch (error) {
      throw asRefusal(client, error, knownSubject !== undefined);
    }
  }

  /** A new access token that does not work means that the provider has disabled the user. */
  async #userInfo(
    client: typeof OpenidClient,
    config: OpenidClient.Configuration,
    accessToken: string,
    subject: string,
  ): Promise<OpenidClient.UserInfoResponse> {
    try {
      return await client.fetchUserInfo(config, accessToken, subject);
    } catch (error) {
      if (challengeErrors(client, error).includes('invalid_token'))
        throw new ProviderRefusal('the provider sends no information about the user: invalid_token');
      throw error;
    }
  }

  #configOf(provider: ProviderClient): Promise<OpenidClient.Configuration> {
    const known = this.#known.get(provider.id);
    if (known?.rev === provider.rev && this.#now() - known.at < METADATA_MS) return known.config;
    const config = this.#discover(provider);
    this.#known.set(provider.id, { rev: provider.rev, at: this.#now(), config });
    // The next sign-in tries again.
    config.catch(() => this.#known.delete(provider.id));
    return config;
  }

  async #discover({
    issuer,
    clientId,
    clientSecret,
  }: Pick<ProviderClient, 'issuer' | 'clientId' | 'clientSecret'>): Promise<OpenidClient.Configuration> {
    const client = await openidClient();
    const isInsecure = checkIssuer(issuer).protocol === 'http:';
    const fetch: OpenidClient.CustomFetch = (url, { method, headers, body, signal }) =>
      this.#fetch(url, { method, headers, body, signal });
    const found = await client.discovery(new URL(issuer), clientId, undefined, client.None(), {
      [client.customFetch]: fetch,
      timeout: TIMEOUT_S,
      execute: isInsecure ? [client.allowInsecureRequests] : [],
    });
    const metadata = found.serverMetadata();
    const config = new client.Configuration(metadata, clientId, undefined, authOf(client, metadata, clientSecret));
    config[client.customFetch] = fetch;
    config.timeout = TIMEOUT_S;
    if (isInsecure) client.allowInsecureRequests(config);
    // Verify the signature of ID tokens, although they come directly from the provider.
    client.enableNonRepudiationChecks(config);
    return config;
  }
}

/** Loaded at the first use: most services have no provider. */
function openidClient(): Promise<typeof OpenidClient> {
  return import('openid-client');
}

function authOf(
  client: typeof OpenidClient,
  { token_endpoint_auth_methods_supported: methods }: OpenidClient.ServerMetadata,
  secret: string | null,
): OpenidClient.ClientAuth {
  if (secret === null) return client.None();
  const usesForm = methods?.includes('client_secret_basic') === false && methods.includes('client_secret_post');
  return usesForm ? client.ClientSecretPost(secret) : client.ClientSecretBasic(secret);
}

type WireClaims = Readonly<Record<string, unknown>>;

/** The ID token takes precedence. If its address is another one, what the user information says about it is ignored. */
function joined(userInfo: WireClaims, idClaims: WireClaims): WireClaims {
  const all = { ...userInfo, ...idClaims };
  const isOtherAddress = Object.hasOwn(idClaims, 'email') && idClaims.email !== userInfo.email;
  return isOtherAddress ? { ...all, email_verified: idClaims.email_verified } : all;
}

function toClaims(
  { issuer, groupsClaim }: ProviderClient,
  subject: string,
  claims: Readonly<Record<string, unknown>>,
): ProviderClaims {
  const { email, email_verified: isVerified, name, preferred_username: username } = claims;
  return {
    issuer,
    subject,
    email: textOrNull(email),
    // Some providers send a string.
    isEmailVerified: isVerified === undefined ? null : isVerified === true || isVerified === 'true',
    name: textOrNull(name) ?? textOrNull(username),
    groups: groupsOf(claims, groupsClaim),
  };
}

/** Reads a claim such as `groups`, or `realm_access.roles` within an object. */
function groupsOf(claims: Readonly<Record<string, unknown>>, path: string): string[] {
  const value = Object.hasOwn(claims, path)
    ? claims[path]
    : path
        .split('.')
        .reduce<unknown>(
          (found, name) =>
            typeof found === 'object' && found !== null && Object.hasOwn(found, name)
              ? (found as Record<string, unknown>)[name]
              : undefined,
          claims,
        );
  const list = Array.isArray(value) ? (value as unknown[]) : [value];
  return list.filter((group): group is string => typeof group === 'string');
}

function textOrNull(value: unknown): string | null {
  return typeof value === 'string' && value !== '' ? value : null;
}

/**
 * Returns a refusal if the provider has refused the user. Everything else may be a passing fault, or a mistake in the
 * settings of the provider: at a refresh it must not end a user. A response to a sign-in that fails a check refuses it.
 */
function asRefusal(client: typeof OpenidClient, error: unknown, isRefresh: boolean): Error {
  if (error instanceof ProviderRefusal) return error;
  const codes = challengeErrors(client, error);
  const isRefused =
    error instanceof client.AuthorizationResponseError ||
    codes.some((code) => USER_ERRORS.has(code)) ||
    (error instanceof client.ResponseBodyError && USER_ERRORS.has(error.error)) ||
    (!isRefresh && error instanceof client.ClientError && FAILED_CHECKS.has(error.code ?? ''));
  if (isRefused) return new ProviderRefusal(reasonOf(error));
  if (!(error instanceof client.WWWAuthenticateChallengeError)) return new Error(reasonOf(error));
  const answer = [`status ${error.status}`, ...codes].join(', ');
  return new Error(`the provider does not accept this client (${answer}): check its client ID and client secret`);
}

/** Returns the error codes in the header WWW-Authenticate of a response. */
function challengeErrors(client: typeof OpenidClient, error: unknown): string[] {
  if (!(error instanceof client.WWWAuthenticateChallengeError)) return [];
  return error.cause.flatMap(({ parameters }) => (parameters.error === undefined ? [] : [parameters.error]));
}

/** Returns a message for users and the log. It contains no tokens and no control characters. */
export function reasonOf(error: unknown): string {
  const {
    message,
    error: code,
    error_description: description,
    cause,
  } = error as Error & { error?: unknown; error_description?: unknown };
  const parts =
    typeof code === 'string'
      ? [code, typeof description === 'string' ? description : '']
      : [message === WRAPPED ? '' : message, cause instanceof Error ? cause.message : ''];
  const text = [...new Set(parts.filter((part) => part !== ''))].join(': ');
  return text.replace(/[^\P{C}]/gu, ' ').slice(0, MAX_TEXT);
}
