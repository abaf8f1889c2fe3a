import { createSign, generateKeyPairSync } from 'node:crypto';
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { ProviderSignIn } from '../../../../server/platform/sign-in/provider-sign-in';
import { JSON_TYPE } from '../api/suite';
import { ORIGIN, Person, type Reply, type Service } from '../api/support';

export const CLIENT_ID = 'capstan';
export const CLIENT_SECRET = 'the secret of the client';
export const ISSUED_SCOPES = ['openid', 'profile', 'email', 'groups'];

export type Claims = Record<string, unknown>;

interface Answer {
  status: number;
  body: object;
  /** The header WWW-Authenticate. */
  challenge?: string;
}

/** oidc-provider in a process. */
export class RealProvider {
  readonly issuer: string;
  readonly #child: ChildProcess;
  #users: Record<string, Claims> = {};

  private constructor(child: ChildProcess, issuer: string) {
    this.#child = child;
    this.issuer = issuer;
  }

  static async start(): Promise<RealProvider> {
    const child = fork(path.join(__dirname, 'real-provider.mjs'), { stdio: ['ignore', 'ignore', 'pipe', 'ipc'] });
    let errors = '';
    child.stderr!.on('data', (chunk: Buffer) => (errors += chunk.toString()));
    const ended = once(child, 'exit').then(() => {
      throw new Error(`the provider has ended: ${errors}`);
    });
    const [{ issuer }] = (await Promise.race([once(child, 'message'), ended])) as [{ issuer: string }];
    ended.catch(() => {});
    return new RealProvider(child, issuer);
  }

  /** Sets the claims of a user. Null disables the user. */
  async setUser(subject: string, claims: Claims | null): Promise<void> {
    this.#users = { ...this.#users, [subject]: claims ?? undefined! };
    this.#child.send({ users: this.#users });
    await once(this.#child, 'message');
  }

  /** Registers the redirect URI of the client. */
  async register(redirectUri: string): Promise<void> {
    this.#child.send({ redirectUri });
    await once(this.#child, 'message');
  }

  /** Follows the redirects as the browser of `subject`, and returns the parameters of the response. */
  async signIn(url: string, subject: string): Promise<Record<string, string>> {
    const cookies = new Map<string, string>();
    let next = new URL(url);
    next.searchParams.set('login_hint', subject);
    for (let i = 0; i < 10 && next.origin !== ORIGIN; i++) {
      const response = await fetch(next, {
        redirect: 'manual',
        headers: { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join('; ') },
      });
      for (const line of response.headers.getSetCookie()) {
        const [, name, value] = /^([^=]+)=([^;]*)/.exec(line)!;
        cookies.set(name, value);
      }
      const location = response.headers.get('location');
      if (location === null) throw new Error(`no redirect: ${response.status} ${await response.text()}`);
      next = new URL(location, next);
    }
    return Object.fromEntries(next.searchParams);
  }

  async close(): Promise<void> {
    const ended = once(this.#child, 'exit');
    this.#child.disconnect();
    await ended;
  }
}

/** All hostile providers sign with this key, because a new one takes 0.2 s of processor time. */
const KEY = generateKeyPairSync('rsa', { modulusLength: 2048 });
const JWK = { ...KEY.publicKey.export({ format: 'jwk' }), kid: 'one', use: 'sig', alg: 'RS256' };

/** A provider that sends whatever a test wants. */
export class HostileProvider {
  issuer = '';
  /** Changes the claims of the next ID tokens. */
  change: (claims: Claims) => Claims = (claims) => claims;
  /** Changes the signed token. */
  tamper: (token: string) => string = (token) => token;
  /** Changes the metadata. */
  metadata: Claims = {};
  /** The response of the token endpoint instead of tokens. */
  failure: Answer | undefined;
  /** The response of the user information. The metadata must name `userInfoEndpoint`. */
  userInfo: Answer = { status: 200, body: {} };
  /** The header of ID tokens. */
  header: Claims = { alg: 'RS256', kid: 'one' };
  nonce: string | undefined;
  /** Runs before the response to a request for a refresh. */
  onRefresh: () => void | Promise<void> = () => {};
  /** The bodies of the requests to the token endpoint. */
  readonly requests: URLSearchParams[] = [];
  readonly #server: http.Server;

  constructor() {
    this.#server = http.createServer((request, response) => void this.#handle(request, response));
  }

  async start(): Promise<void> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    this.issuer = `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  get userInfoEndpoint(): string {
    return `${this.issuer}/userinfo`;
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #handle(request: http.IncomingMessage, response: http.ServerResponse): Promise<void> {
    const send = (status: number, body: object, challenge?: string) => {
      response.writeHead(status, {
        'content-type': 'application/json',
        ...(challenge === undefined ? {} : { 'www-authenticate': challenge }),
      });
      response.end(JSON.stringify(body));
    };
    if (request.url === '/.well-known/openid-configuration')
      return send(200, {
        issuer: this.issuer,
        authorization_endpoint: `${this.issuer}/authorize`,
        token_endpoint: `${this.issuer}/token`,
        jwks_uri: `${this.issuer}/keys`,
        id_token_signing_alg_values_supported: ['RS256'],
        ...this.metadata,
      });
    if (request.url === '/keys') return send(200, { keys: [JWK] });
    if (request.url === '/userinfo') return send(this.userInfo.status, this.userInfo.body, this.userInfo.challenge);
    let text = '';
    for await (const chunk of request) text += String(chunk);
    const parameters = new URLSearchParams(text);
    this.requests.push(parameters);
    if (parameters.get('grant_type') === 'refresh_token') await this.onRefresh();
    if (this.failure !== undefined) return send(this.failure.status, this.failure.body, this.failure.challenge);
    return send(200, {
      access_token: 'an access token',
      token_type: 'Bearer',
      refresh_token: 'a refresh token',
      id_token: this.tamper(this.#token()),
    });
  }

  #token(): string {
    const seconds = Math.floor(Date.now() / 1000);
    const claims = this.change({
      iss: this.issuer,
      sub: 'subject',
      aud: CLIENT_ID,
      iat: seconds,
      exp: seconds + 300,
      nonce: this.nonce,
      email: 'eve@example.com',
      email_verified: true,
    });
    const part = (value: object) => Buffer.from(JSON.stringify(value)).toString('base64url');
    const signed = `${part(this.header)}.${part(claims)}`;
    return `${signed}.${createSign('sha256').update(signed).sign(KEY.privateKey, 'base64url')}`;
  }
}

/** Gives a service the sign-in with providers. */
export function addSignIn(service: Service, origin = ORIGIN): ProviderSignIn {
  const providers = new ProviderSignIn({
    store: service.store,
    log: service.context.log,
    origin,
    now: service.clock.now,
  });
  Object.assign(service.context, { providers });
  return providers;
}

/** A browser that begins a sign-in at the console. */
export class Visitor extends Person {
  /** The cookie of the sign-in. */
  pending = '';
  state = '';
  /** The provider that the redirect URI names. */
  redirectOf: string | undefined;
  readonly #service: Service;

  constructor(service: Service) {
    super(service, '', '');
    this.#service = service;
  }

  /** Returns the address of the provider. */
  async begin(providerId: string, returnTo?: string): Promise<string> {
    const reply = await this.#send(`/api/v1/auth/providers/${providerId}/begin`, {
      ...(returnTo === undefined ? {} : { return_to: returnTo }),
    });
    if (reply.status !== 200) throw new Error(reply.text);
    this.pending = reply.headers['set-cookie'].split(';')[0];
    this.state = reply.body.state;
    const redirect = new URL(new URL(reply.body.url as string).searchParams.get('redirect_uri')!);
    this.redirectOf = redirect.pathname.split('/')[3];
    return reply.body.url;
  }

  async finish(response: Record<string, string>): Promise<Reply> {
    const reply = await this.#send('/api/v1/auth/providers/callback', {
      ...(this.redirectOf === undefined ? {} : { provider: this.redirectOf }),
      ...response,
    });
    if (reply.status !== 200) return reply;
    this.cookie = [reply.headers['set-cookie']].flat()[0].split(';')[0];
    this.sessionSecret = reply.headers['x-session-secret'];
    await this.readCsrfToken();
    return reply;
  }

  #send(target: string, body: object): Promise<Reply> {
    return this.#service.send('POST', target, {
      headers: {
        ...JSON_TYPE,
        origin: ORIGIN,
        ...(this.pending === '' ? {} : { cookie: this.pending }),
      },
      body: JSON.stringify(body),
    });
  }
}
