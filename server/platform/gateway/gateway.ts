import {
  type Access,
  type AccessOutcome,
  ApiError,
  CidrList,
  Cors,
  type ErrorStyle,
  errorStyleOf,
  type Granted,
  header,
  type HttpReply,
  isAnthropicRequest,
  isPreflight,
  type Log,
  OPEN_CORS,
  RecordedReply,
  redactKeys,
  type ReplicaUsage,
  requestIdOf,
  type Reservation,
  type RequestTrace,
  type StreamedRequest,
  toApiError,
  type Tracing,
  withBearerKey,
} from 'capstan/internal';
import { addressOf, type DeploymentAddress, isApiRequest, isRepeatable } from './address';
import { Balancer } from './balancer';
import type { Billing } from './billing';
import { chooseVariant, type ServedVariant } from './canary-share';
import type { Call } from './call';
import { Forwarder } from './forward/forward';
import { ColdStartQueue, notFound } from './cold-start-queue';
import { eitherOf } from './either-of';
import { ModelApi, type RequestedModel } from './model-api';
import type { ModelBody } from './model-body';
import { keepCall } from './kept-call';
import { hasStorage, type OwnerStorage } from './owner-storage';
import { ReportedError } from './forward/stream-errors';
import type { GatewayControl, Target, Targets } from './targets';
import type { UpstreamFailure } from './upstream-error';

export interface GatewayTimes {
  connectTimeoutMs: number;
  firstByteTimeoutMs: number;
  idleTimeoutMs: number;
  slowClientTimeoutMs: number;
  /** How long an upstream may take to finish a response that is not streamed, when no client waits for it. */
  lingerMs: number;
  /** How long a queued request waits before the gateway starts its stream with comments. */
  silentMs: number;
  pingIntervalMs: number;
}

const DEFAULT_GATEWAY_TIMES: GatewayTimes = {
  connectTimeoutMs: 2_000,
  firstByteTimeoutMs: 600_000,
  idleTimeoutMs: 300_000,
  slowClientTimeoutMs: 60_000,
  lingerMs: 120_000,
  silentMs: 5_000,
  pingIntervalMs: 15_000,
};

export interface GatewayOptions {
  targets: Targets;
  control: GatewayControl;
  access: Pick<Access, 'check' | 'identify'>;
  /** Absent: no responses, files and batches are kept. */
  storage?: OwnerStorage;
  log: Log;
  /** Prices requests and keeps budgets. Absent: requests cost nothing. */
  billing?: Billing;
  /** Without a leading dot: deployments have the host name `{slug}.{domain}`. When absent, only `/d/{slug}` works. */
  domain?: string;
  /** Scheme that clients use, unless a trusted proxy reports another. */
  scheme?: 'http' | 'https';
  /** Networks of proxies whose `X-Forwarded-*` headers are trusted. */
  trustedProxies?: readonly string[];
  times?: Partial<GatewayTimes>;
  /** Allows upstreams at private addresses. */
  allowsPrivateUpstreams?: boolean;
  /** Chooses the requests of a canary. Default `Math.random`. */
  random?: () => number;
  /** Logs each request at level info instead of debug. */
  logsRequests?: boolean;
  /** Absent: no request is traced. */
  tracing?: Tracing | undefined;
  /** Called for each finished request to an existing deployment. */
  onEnd?: (record: GatewayRecord) => void;
}

/** Facts about a finished request. */
export interface GatewayRecord {
  readonly deploymentId: string;
  readonly slug: string;
  readonly keyId: string | undefined;
  /** 499 when the client disconnected before the response started. */
  readonly status: number;
  /** Wall clock. */
  readonly endedMs: number;
  readonly durationMs: number;
  /** Measured from the arrival of the request. undefined when no replica responded. */
  readonly firstByteMs: number | undefined;
  /** Request body size, from Content-Length. */
  readonly requestBytes: number;
  /** Response body size. */
  readonly responseBytes: number;
  /** undefined when the replica reported no usage. */
  readonly usage: ReplicaUsage | undefined;
  readonly numRetries: number;
  readonly failures: readonly UpstreamFailure[];
  /** From sending the request to the replica to its first byte. Absent for bodies that were forwarded on arrival. */
  readonly replicaMs?: number;
  /** The version that got it first. Absent without a canary, and for requests other than inference. */
  readonly served?: ServedVariant;
  /** The deployment that responded in its place. */
  readonly fallbackId?: string;
}

const CLIENT_GONE = 499;
const MAX_PATH_LENGTH = 200;

/** How a request of the service itself differs from a client's. */
export interface OwnWork {
  access: Pick<Access, 'check' | 'identify'>;
  priority: number;
}

/** Receives the details of a call. Used by the test tool. */
export type CallObserver = (call: Readonly<Call>) => void;

/**
 * Serving port of all deployments: finds the deployment, checks the key and forwards the request. Handles no sockets.
 */
export class Gateway {
  readonly #options: GatewayOptions;
  readonly #cors = new Cors({ ...OPEN_CORS, methods: ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'] });
  readonly #trustedProxies: CidrList | undefined;
  readonly #balancer: Balancer;
  readonly #coldStarts: ColdStartQueue;
  readonly #forwarder: Forwarder;
  readonly #models: ModelApi;
  #numOpen = 0;
  #isDraining = false;
  #onIdle: (() => void)[] = [];

  constructor(options: GatewayOptions) {
    const { targets, control, scheme = 'http', trustedProxies, storage } = options;
    const times = { ...DEFAULT_GATEWAY_TIMES, ...options.times };
    this.#options = options;
    this.#trustedProxies =
      trustedProxies === undefined || trustedProxies.length === 0
        ? undefined
        : CidrList.parse('--trusted-proxy', trustedProxies);
    this.#models = new ModelApi({ targets, storage });
    this.#balancer = new Balancer(targets, control, times, { allowsPrivate: options.allowsPrivateUpstreams ?? false });
    this.#coldStarts = new ColdStartQueue(targets, control);
    this.#forwarder = new Forwarder({
      targets,
      balancer: this.#balancer,
      coldStarts: this.#coldStarts,
      times,
      scheme,
      trustedProxies: this.#trustedProxies,
      billing: options.billing,
      log: options.log,
    });
  }

  get numOpenRequests(): number {
    return this.#numOpen;
  }

  /** Open event streams that are being relayed. */
  get numOpenStreams(): number {
    return this.#forwarder.numOpenStreams;
  }

  /** Open requests that wait for the first replica. */
  get numHeldRequests(): number {
    return this.#coldStarts.size;
  }

  /** Never rejects. */
  readonly handle = (request: StreamedRequest, reply: HttpReply): Promise<void> =>
    this.observe(request, reply, undefined);

  /**
   * Like {@link handle}, and passes the details of the call to `observer`.
   * @param own Given for requests of the service itself, such as the lines of batches.
   */
  async observe(
    request: StreamedRequest,
    reply: HttpReply,
    observer: CallObserver | undefined,
    own?: OwnWork,
  ): Promise<void> {
    const startedMs = performance.now();
    const state: RequestState = {
      request,
      requestId: requestIdOf(request),
      access: own?.access ?? this.#options.access,
      priority: own?.priority,
      trace: this.#options.tracing?.start(request, request.path, startedMs),
      call: undefined,
      target: undefined,
      served: undefined,
      grant: undefined,
      reservation: undefined,
      body: undefined,
      style: errorStyleOf(request.path, request.headers),
    };
    const recorded = new RecordedReply(reply, { 'X-Request-Id': state.requestId });
    this.#numOpen++;
    try {
      await this.#process(state, recorded);
    } catch (error) {
      state.trace?.fail(error instanceof ReportedError ? 'upstream_error' : toApiError(error).code);
      this.#sendError(error, state, recorded);
    } finally {
      state.body?.close();
      const tokens = state.call?.usageEstimate ?? state.call?.usage;
      state.grant?.done(tokens === undefined ? 0 : tokens.promptTokens + tokens.completionTokens);
      state.reservation?.release();
      if (state.call !== undefined) observer?.(state.call);
      if (state.trace !== undefined) endTrace(state.trace, state, recorded.status ?? CLIENT_GONE);
      this.#record(state, recorded, startedMs);
      if (--this.#numOpen === 0) this.#onIdle.splice(0).forEach((resolve) => resolve());
    }
  }

  /** Refuses new requests. Resolves when all open requests have ended, and all bills. */
  async drain(): Promise<void> {
    this.#isDraining = true;
    this.#coldStarts.close();
    if (this.#numOpen > 0) await new Promise<void>((resolve) => this.#onIdle.push(resolve));
    await this.#forwarder.settled();
  }

  /** Closes all connections to replicas, including those with open requests. */
  close(): void {
    this.#isDraining = true;
    this.#coldStarts.close();
    this.#balancer.close();
    this.#forwarder.close();
  }

  async #process(state: RequestState, recorded: RecordedReply): Promise<void> {
    const { request } = state;
    if (this.#isDraining)
      throw new ApiError('shutting_down', 'The server is shutting down', { headers: { 'Retry-After': '5' } });
    const address = addressOf(request, this.#options.domain);
    if (address === undefined && isApiRequest(request, this.#options.domain)) {
      // A preflight carries no key. The actual request is checked.
      if (isPreflight(request)) return recorded.send(204, this.#cors.headers(request), '');
      refuseUpgrade(request);
      const found = await this.#models.route(state, recorded, this.#cors.headers(request));
      if (found !== undefined && state.target !== undefined)
        await this.#forward(state, recorded, { ...found, target: state.target });
      return;
    }
    const target = address === undefined ? undefined : this.#options.targets.find(address.slug);
    if (address !== undefined) state.style = errorStyleOf(address.path, request.headers);
    if (address === undefined || target === undefined || target.state === 'deleting') throw notFound();
    state.target = target;
    // An upstream gets no preflights.
    if (
      isPreflight(request) &&
      (target.accessControl || target.replicas.some(({ upstream }) => upstream !== undefined))
    )
      return recorded.send(204, this.#cors.headers(request), '');
    if (target.accessControl) {
      const checked = isAnthropicRequest(address.path, request.headers)
        ? { ...request, headers: withBearerKey(request.headers) }
        : request;
      const checking = state.access.check(checked, { id: target.deploymentId, ownerId: target.ownerId });
      state.grant = admit(checking instanceof Promise ? await checking : checking);
    }
    refuseUpgrade(request);
    const { storage } = this.#options;
    if (
      state.grant !== undefined &&
      hasStorage(address, target) &&
      storage?.serves(request.method, address.path) === true
    ) {
      const { requestId, grant } = state;
      const { keyId, ownerId, reach = [target.deploymentId] } = grant;
      const { deploymentId } = target;
      return storage.handle(
        { requestId, keyId, ownerId, deploymentId, reach },
        { ...request, path: address.path, signal: eitherOf(request.signal, grant.signal) },
        new RecordedReply(recorded, this.#cors.headers(request)),
      );
    }
    await this.#forward(state, recorded, { address, target });
  }

  async #forward(
    state: RequestState,
    recorded: RecordedReply,
    { address, target, model }: { address: DeploymentAddress; target: Target; model?: RequestedModel },
  ): Promise<void> {
    const { request } = state;
    const signal = eitherOf(request.signal, state.grant?.signal);
    const { target: chosen, served } = chooseVariant(
      target,
      request,
      state.grant?.keyId,
      this.#options.random ?? Math.random,
    );
    state.served = served;
    const { storage } = this.#options;
    const { grant, requestId } = state;
    const { deploymentId } = target;
    const { reach = [deploymentId] } = grant ?? {};
    const kept =
      storage === undefined || grant === undefined || !hasStorage(address, target)
        ? undefined
        : await keepCall(
            storage,
            { requestId, ownerId: grant.ownerId, deploymentId, reach },
            { request, path: address.path, model, reply: recorded },
          );
    state.call = {
      request: kept?.request ?? request,
      requestId,
      trace: state.trace,
      reply: kept?.reply ?? recorded,
      address,
      target: chosen,
      model: kept?.model ?? model,
      grant,
      priority: state.priority,
      signal,
      failures: [],
      numRetries: 0,
    };
    try {
      await this.#forwarder.forward(state.call);
    } finally {
      await kept?.settled();
    }
  }

  #sendError(error: unknown, { request, requestId, target, style }: RequestState, recorded: RecordedReply): void {
    if (error instanceof ReportedError || request.signal.aborted) return;
    const apiError = toApiError(error);
    if (apiError.status === 500)
      this.#options.log.error(
        { requestId, deployment: target?.deploymentId, err: apiError.cause ?? apiError },
        'request failed in the gateway',
      );
    // CORS headers let a page of another origin read the error.
    if (!recorded.hasStarted)
      recorded.send(
        apiError.status,
        { ...this.#cors.headers(request), 'Content-Type': 'application/json', ...apiError.headers },
        style.body(apiError, requestId),
      );
  }

  #record(
    { request, requestId, target, grant, call, served }: RequestState,
    recorded: RecordedReply,
    startedMs: number,
  ): void {
    const { log, logsRequests, onEnd } = this.#options;
    const durationMs = performance.now() - startedMs;
    const status = recorded.status ?? CLIENT_GONE;
    const firstByteMs = call?.firstByteAtMs === undefined ? undefined : call.firstByteAtMs - startedMs;
    const servedBy = call?.servedBy?.deploymentId;
    const fallbackId = servedBy === target?.deploymentId ? undefined : servedBy;
    const line = {
      method: request.method,
      path: redactKeys(request.path).slice(0, MAX_PATH_LENGTH),
      status,
      ms: round(durationMs),
      requestId,
      deployment: target?.deploymentId,
      replica: call?.choice?.replica.id,
      ...(fallbackId === undefined ? {} : { fallback: fallbackId }),
      ...(firstByteMs === undefined ? {} : { firstByteMs: round(firstByteMs) }),
      ...(grant === undefined ? {} : { key: grant.keyId }),
      ...(call?.choice === undefined || call.choice.reason === 'only'
        ? {}
        : { chosen: call.choice.reason, matched: call.choice.matched, cached: call.usage?.cachedTokens }),
      ...(call?.wasCut === true ? { wasCut: true } : {}),
      ...(served === undefined ? {} : { variant: served.variant }),
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
      responseBytes: recorded.numBytes,
      numRetries: call?.numRetries ?? 0,
      failures: call?.failures ?? [],
      ...(call?.sentAtMs === undefined || call.firstByteAtMs === undefined
        ? {}
        : { replicaMs: call.firstByteAtMs - call.sentAtMs }),
      ...(served === undefined || !isRepeatable({ method: request.method, path: call?.address.path ?? '' })
        ? {}
        : { served }),
      ...(fallbackId === undefined ? {} : { fallbackId }),
    });
  }
}

interface RequestState {
  readonly request: StreamedRequest;
  readonly requestId: string;
  readonly access: Pick<Access, 'check' | 'identify'>;
  readonly priority: number | undefined;
  readonly trace: RequestTrace | undefined;
  target: Target | undefined;
  served: ServedVariant | undefined;
  grant: Granted | undefined;
  reservation: Reservation | undefined;
  call: Call | undefined;
  body: ModelBody | undefined;
  style: ErrorStyle;
}

/** What the gateway knows of the request. The span of the replica, below this one, knows more. */
function endTrace(trace: RequestTrace, { target, call }: RequestState, status: number): void {
  const { usage, firstByteAtMs, numRetries = 0, model } = call ?? {};
  if (target !== undefined) trace.nameModel(model?.requested ?? target.slug);
  if (firstByteAtMs !== undefined) trace.addEvent('gen_ai.first_byte', firstByteAtMs);
  const replica = call?.choice?.replica.id;
  trace.set({
    ...(target === undefined ? {} : { 'capstan.deployment.name': call?.servedBy?.slug ?? target.slug }),
    ...(replica === undefined ? {} : { 'capstan.replica.id': replica }),
    ...(numRetries === 0 ? {} : { 'http.request.resend_count': numRetries }),
    ...(usage === undefined
      ? {}
      : {
          'gen_ai.usage.input_tokens': usage.promptTokens,
          'gen_ai.usage.output_tokens': usage.completionTokens,
          'gen_ai.usage.cache_read.input_tokens': usage.cachedTokens,
        }),
  });
  trace.end(status, undefined);
}

function refuseUpgrade(request: StreamedRequest): void {
  if (header(request, 'upgrade') !== undefined)
    throw new ApiError(
      'not_implemented',
      'Protocol upgrades (WebSocket) are not supported: expected a plain HTTP request',
    );
}

function admit(outcome: AccessOutcome): Granted {
  if (!outcome.ok) throw new ApiError(outcome.code, outcome.message, { headers: { ...outcome.headers } });
  return outcome;
}

function round(ms: number): number {
  return Math.round(ms * 10) / 10;
}
