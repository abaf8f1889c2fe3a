import {
  type Access,
  ApiError,
  BATCH_ENDPOINTS,
  BATCH_PRIORITY,
  type BatchLine,
  type BatchRecord,
  type BatchWork,
  type Denied,
  errorCode,
  type Identity,
  lineDone,
  type LineOutcome,
  newId,
  renderError,
  STREAM_REFUSED,
  type StreamedRequest,
} from 'capstan/internal';
import type { Gateway, OwnWork } from '../gateway/gateway';
import type { Target, Targets } from '../gateway/targets';
import { LinePlaces } from './line-places';
import { LineReply, MAX_RESULT_BYTES } from './line-reply';

/** Lines in progress of all batches. */
const MAX_LINES = 1024;
/** Lines in progress of one owner. Deployments that do not respond hold theirs for long. */
const MAX_OWN_LINES = 512;
/** Temporary errors, and when a line runs again if the response does not say when. */
const RETRIES_MS: Readonly<Record<string, number>> = {
  queue_full: 1_000,
  rate_limit_exceeded: 5_000,
  budget_exceeded: 60_000,
  auth_unavailable: 5_000,
  model_loading: 2_000,
  deployment_not_ready: 2_000,
  deployment_stopping: 5_000,
  deployment_paused: 30_000,
  deployment_failed: 30_000,
  shutting_down: 2_000,
};
/** Errors of a replica that another attempt may not have. The line itself may cause them, so attempts are counted. */
const FAILURES: ReadonlySet<string> = new Set([
  'upstream_unavailable',
  'upstream_timeout',
  'engine_dead',
  'model_load_failed',
]);
const MAX_ATTEMPTS = 3;
const FAILURE_RETRY_MS = 5_000;
const MAX_RETRY_MS = 60_000;

export interface GatewayLinesOptions {
  gateway: Pick<Gateway, 'observe'>;
  targets: Targets;
  access: Pick<Access, 'identifyById'>;
  /** Lines that run at the same time in one replica. */
  linesPerReplica: number;
}

/** Sends the lines of batches through the gateway, as requests of the key that created the batch. */
export class GatewayLines implements BatchWork {
  readonly #options: GatewayLinesOptions;
  readonly #places: LinePlaces;

  constructor(options: GatewayLinesOptions) {
    this.#options = options;
    const { targets } = options;
    this.#places = new LinePlaces((deploymentId) => this.#placesIn(targets.findById(deploymentId)));
  }

  endpoints(): readonly string[] {
    return BATCH_ENDPOINTS;
  }

  numPlaces(): number {
    return MAX_LINES;
  }

  numPlacesOfOwner(): number {
    return MAX_OWN_LINES;
  }

  /** A line whose deployment does not exist needs no place: it gets an error. */
  enter(batch: BatchRecord, model: string | undefined): (() => void) | undefined {
    const target = this.#targetOf(batch, model);
    return target === undefined ? () => {} : this.#places.enter(target.deploymentId);
  }

  async execute(batch: BatchRecord, line: BatchLine, signal: AbortSignal): Promise<LineOutcome> {
    const requestId = newId('batch');
    if (line.isStream) return lineDone(400, STREAM_REFUSED, requestId);
    const identity = this.#identify(batch);
    if (!identity.ok) return deniedLine(identity);
    const reply = new LineReply();
    const own: OwnWork = {
      priority: BATCH_PRIORITY,
      access: {
        identify: () => identity,
        check: (_request, asked) => identity.admit(asked!),
      },
    };
    const request = requestOf(batch, this.#targetById(batch), line, { requestId, signal });
    await this.#options.gateway.observe(request, reply, undefined, own);
    if (signal.aborted) return { kind: 'retry', afterMs: 0 };
    // The key may have lost access meanwhile.
    const later = reply.status === 200 ? identity : this.#identify(batch);
    return later.ok ? this.#outcome(line, reply, requestId) : deniedLine(later);
  }

  #identify({ keyId = '', address }: BatchRecord): Identity | Denied {
    return this.#options.access.identifyById(keyId, address);
  }

  #outcome({ numFailures }: BatchLine, reply: LineReply, requestId: string): LineOutcome {
    const { status, retryAfterMs } = reply;
    const body = reply.body();
    const code = codeOf(status, body);
    if (Object.hasOwn(RETRIES_MS, code))
      return { kind: 'retry', afterMs: Math.min(retryAfterMs ?? RETRIES_MS[code], MAX_RETRY_MS) };
    if (FAILURES.has(code) && numFailures + 1 < MAX_ATTEMPTS)
      return { kind: 'retry', afterMs: FAILURE_RETRY_MS, isFailure: true };
    return body === undefined ? lineDone(502, UNREADABLE, requestId) : lineDone(status, body, requestId);
  }

  #placesIn(target: Target | undefined): number {
    return (target?.replicas.length ?? 0) * this.#options.linesPerReplica;
  }

  /** The deployment at whose URL a batch was created. */
  #targetById({ deploymentId }: BatchRecord): Target | undefined {
    return deploymentId === undefined ? undefined : this.#options.targets.findById(deploymentId);
  }

  #targetOf(batch: BatchRecord, model: string | undefined): Target | undefined {
    if (batch.deploymentId !== undefined) return this.#targetById(batch);
    return model === undefined ? undefined : this.#options.targets.findByModel(batch.ownerId, model)?.target;
  }
}

/** Returns the outcome of a line whose key has no access, or cannot be checked now. */
function deniedLine({ code, message }: Denied): LineOutcome {
  if (Object.hasOwn(RETRIES_MS, code)) return { kind: 'retry', afterMs: RETRIES_MS[code] };
  return { kind: 'refused', error: { code, message, param: null, line: null } };
}

/** The result of a line whose response cannot be written as one. */
const UNREADABLE = renderError(
  new ApiError(
    'upstream_unavailable',
    `The deployment did not respond with a complete JSON object of at most ${MAX_RESULT_BYTES} bytes`,
  ),
);

function codeOf(status: number, body: string | undefined): string {
  if (body === undefined) return 'upstream_unavailable';
  return status === 200 ? '' : errorCode(body);
}

function requestOf(
  { endpoint, address, deploymentId }: BatchRecord,
  target: Target | undefined,
  { body }: BatchLine,
  { requestId, signal }: { requestId: string; signal: AbortSignal },
): StreamedRequest {
  return {
    method: 'POST',
    // Without its deployment the request is answered as one to an unknown address.
    path: deploymentId === undefined ? endpoint : `/d/${target?.slug ?? 'deleted'}${endpoint}`,
    query: '',
    headers: [
      ['host', 'localhost'],
      ['content-type', 'application/json'],
      ['content-length', String(body.length)],
      ['x-request-id', requestId],
    ],
    remoteAddress: address,
    signal,
    readBody: () => Promise.resolve(body),
    bodyPieces: async function* () {
      yield await Promise.resolve(body);
    },
  };
}
