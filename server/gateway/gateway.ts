import { type Access, type AccessOutcome, CidrList, type Granted, redactKeys } from '../access';
import { Answer } from '../answer';
import { Cors, isPreflight, OPEN_CORS } from '../cors';
import { ApiError, renderError, toApiError } from '../errors';
import { header, type HttpReply, type StreamedRequest } from '../http/transport';
import type { Log } from '../log';
import { requestIdOf } from '../request-id';
import type { ReplicaUsage } from '../replica-headers';
import { addressOf } from './address';
import { Balancer } from './balancer';
import { AnsweredError, type Call, Forwarder } from './forward';
import { Holds, notFound } from './hold';
import type { GatewayControl, Target, Targets } from './targets';
import type { UpstreamFailure } from './upstream-error';

export interface GatewayTimes {
  connectTimeoutMs: number;
  firstByteTimeoutMs: number;
  idleTimeoutMs: number;
  slowClientTimeoutMs: number;
  /** How long a held request waits before its stream is begun with comments. */
  silentMs: number;
  pingIntervalMs: number;
}

export const DEFAULT_GATEWAY_TIMES: GatewayTimes = {
  connectTimeoutMs: 2_000,
  firstByteTimeoutMs: 600_000,
  idleTimeoutMs: 300_000,
  slowClientTimeoutMs: 60_000,
  silentMs: 5_000,
  pingIntervalMs: 15_000,
};

export interface GatewayOptions {
  targets: Targets;
  control: GatewayControl;
  access: Pick<Access, 'check'>;
  log: Log;
  /** Without a leading dot: `{slug}.{domain}` is a deployment's host name. Absent: they are had by `/d/{slug}` alone. */
  domain?: string;
  /** How clients reach the gateway, where no trusted proxy says it. */
  scheme?: 'http' | 'https';
  /** Networks of proxies whose `X-Forwarded-*` count. */
  trustedProxies?: readonly string[];
  times?: Partial<GatewayTimes>;
  /** One line per request at level info; else at debug. */
  logsRequests?: boolean;
  /** Hears of every request that has ended and was for a deployment that there is. */
  onEnd?: (record: GatewayRecord) => void;
}

/** What is known of a request once it has ended. */
export interface GatewayRecord {
  readonly deploymentId: string;
  readonly slug: string;
  readonly keyId: string | undefined;
  /** 499 when the client left before an answer began. */
  readonly status: number;
  /** Wall clock. */
  readonly endedMs: number;
  readonly durationMs: number;
  /** From the arrival of the request; undefined where no replica answered. */
  readonly firstByteMs: number | undefined;
  /** Of the body, as its length is said. */
  readonly requestBytes: number;
  /** Of the answer's body. */
  readonly responseBytes: number;
  /** undefined where the replica told nothing. */
  readonly usage: ReplicaUsage | undefined;
  readonly numRetries: number;
  readonly failures: readonly UpstreamFailure[];
}

const CLIENT_GONE = 499;
const MAX_PATH_LENGTH = 200;

/** Who sees what happens inside: the test tool. */
export type CallObserver = (call: Readonly<Call>) => void;

/** The serving port of all deployments: finds the deployment, checks the key, and passes the request to a replica. Knows no sockets of clients. */
export class Gateway {
  readonly #options: GatewayOptions;
  readonly #cors = new Cors({ ...OPEN_CORS, methods: ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'] });
  readonly #trustedProxies: CidrList | undefined;
  readonly #balancer: Balancer;
  readonly #holds: Holds;
  readonly #forwarder: Forwarder;
  #numOpen = 0;
  #isDraining = false;
  #onIdle: (() => void)[] = [];

  constructor(options: GatewayOptions) {
    const { targets, control, scheme = 'http', trustedProxies } = options;
    const times = { ...DEFAULT_GATEWAY_TIMES, ...options.times };
    this.#options = options;
    this.#trustedProxies =
      trustedProxies === undefined || trustedProxies.length === 0
        ? undefined
        : CidrList.parse('--trusted-proxy', trustedProxies);
    this.#balancer = new Balancer(targets, control, times);
    this.#holds = new Holds(targets, control);
    this.#forwarder = new Forwarder({
      targets,
      balancer: this.#balancer,
      holds: this.#holds,
      times,
      scheme,
      trustedProxies: this.#trustedProxies,
    });
  }

  get numOpenRequests(): number {
    return this.#numOpen;
  }

  /** Of those, streams of events that are being passed on. */
  get numOpenStreams(): number {
    return this.#forwarder.numOpenStreams;
  }

  /** Of those, requests that wait for a first replica. */
  get numHeldRequests(): number {
    return this.#holds.size;
  }

  /** Never rejects. */
  readonly handle = (request: StreamedRequest, reply: HttpReply): Promise<void> =>
    this.observe(request, reply, undefined);

  /** The same for one who wants to know more of the call than its answer. */
  async observe(request: StreamedRequest, reply: HttpReply, observer: CallObserver | undefined): Promise<void> {
    const startedMs = performance.now();
    const walk: Walk = {
      request,
      requestId: requestIdOf(request),
      call: undefined,
      target: undefined,
      grant: undefined,
    };
    const answer = new Answer(reply, { 'X-Request-Id': walk.requestId });
    this.#numOpen++;
    try {
      await this.#walk(walk, answer);
    } catch (error) {
      this.#answerError(error, walk, answer);
    } finally {
      const tokens = walk.call?.usage;
      walk.grant?.done(tokens === undefined ? 0 : tokens.promptTokens + tokens.completionTokens);
      if (walk.call !== undefined) observer?.(walk.call);
      this.#record(walk, answer, startedMs);
      if (--this.#numOpen === 0) this.#onIdle.splice(0).forEach((resolve) => resolve());
    }
  }

  /** From now on new requests are refused; resolves when the open ones are answered. */
  drain(): Promise<void> {
    this.#isDraining = true;
    this.#holds.close();
    return this.#numOpen === 0 ? Promise.resolve() : new Promise((resolve) => this.#onIdle.push(resolve));
  }

  /** Ends connections to replicas, and what is still open on them. */
  close(): void {
    this.#isDraining = true;
    this.#holds.close();
    this.#balancer.close();
  }

  async #walk(walk: Walk, answer: Answer): Promise<void> {
    const { request } = walk;
    if (this.#isDraining)
      throw new ApiError('shutting_down', 'The server is shutting down', { headers: { 'Retry-After': '5' } });
    const address = addressOf(request, this.#options.domain);
    const target = address === undefined ? undefined : this.#options.targets.find(address.slug);
    if (address === undefined || target === undefined || target.state === 'deleting') throw notFound();
    walk.target = target;
    if (target.accessControl) {
      // A browser sends no key with it; what it asks for is checked when it comes.
      if (isPreflight(request)) return answer.send(204, this.#cors.headers(request), '');
      const checking = this.#options.access.check(request, { id: target.deploymentId, ownerId: target.ownerId });
      walk.grant = admit(checking instanceof Promise ? await checking : checking);
    }
    if (header(request, 'upgrade') !== undefined)
      throw new ApiError(
        'not_implemented',
        'Connections that change their protocol (WebSocket) are not supported: expected HTTP requests',
      );
    const revoked = walk.grant?.signal;
    const signal = revoked === undefined ? request.signal : AbortSignal.any([request.signal, revoked]);
    walk.call = {
      request,
      requestId: walk.requestId,
      answer,
      address,
      target,
      grant: walk.grant,
      signal,
      failures: [],
      numRetries: 0,
    };
    await this.#forwarder.forward(walk.call);
  }

  #answerError(error: unknown, { request, requestId, target }: Walk, answer: Answer): void {
    if (error instanceof AnsweredError || request.signal.aborted) return;
    const apiError = toApiError(error);
    if (apiError.status === 500)
      this.#options.log.error(
        { requestId, deployment: target?.deploymentId, err: apiError.cause ?? apiError },
        'a request failed in the gateway',
      );
    // A page of another origin is to see why.
    if (!answer.hasStarted)
      answer.send(
        apiError.status,
        { ...this.#cors.headers(request), 'Content-Type': 'application/json', ...apiError.headers },
        renderError(apiError),
      );
  }

  #record({ request, requestId, target, grant, call }: Walk, answer: Answer, startedMs: number): void {
    const { log, logsRequests, onEnd } = this.#options;
    const durationMs = performance.now() - startedMs;
    const status = answer.status ?? CLIENT_GONE;
    const firstByteMs = call?.firstByteAtMs === undefined ? undefined : call.firstByteAtMs - startedMs;
    const line = {
      method: request.method,
      path: redactKeys(request.path).slice(0, MAX_PATH_LENGTH),
      status,
      ms: round(durationMs),
      requestId,
      deployment: target?.deploymentId,
      replica: call?.choice?.replica.id,
      ...(firstByteMs === undefined ? {} : { firstByteMs: round(firstByteMs) }),
      ...(grant === undefined ? {} : { key: grant.keyId }),
      ...(call?.choice === undefined || call.choice.reason === 'only'
        ? {}
        : { chosen: call.choice.reason, matched: call.choice.matched, cached: call.usage?.cachedTokens }),
      ...(call?.wasCut === true ? { wasCut: true } : {}),
    };
    if (logsRequests === true) log.info(line, 'request');
    else log.debug(line, 'request');
    if (target === undefined || target.isContainer === true) return;
    onEnd?.({
      deploymentId: target.deploymentId,
      slug: target.slug,
      keyId: grant?.keyId,
      status,
      endedMs: Date.now(),
      durationMs,
      firstByteMs,
      usage: call?.usage,
      requestBytes: Number(header(request, 'content-length') ?? 0),
      responseBytes: answer.numBytes,
      numRetries: call?.numRetries ?? 0,
      failures: call?.failures ?? [],
    });
  }
}

interface Walk {
  readonly request: StreamedRequest;
  readonly requestId: string;
  target: Target | undefined;
  grant: Granted | undefined;
  call: Call | undefined;
}

function admit(outcome: AccessOutcome): Granted {
  if (!outcome.ok) throw new ApiError(outcome.code, outcome.message, { headers: { ...outcome.headers } });
  return outcome;
}

function round(ms: number): number {
  return Math.round(ms * 10) / 10;
}
