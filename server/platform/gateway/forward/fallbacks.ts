import { ApiError, type ApiErrorCode, type Granted, mayCall, toApiError } from 'capstan/internal';
import type { RequestedModel } from '../model-api';
import { findModel } from '../model-field';
import { type DeploymentAddress, isRepeatable } from '../address';
import { UpstreamError } from '../upstream-error';
import type { Target, Targets } from '../targets';
import { wholeBody } from '../model-body';

/** A deployment that gets one of these statuses from its replica does not serve the request. */
const FAILED_STATUSES = new Set([429, 500, 502, 503, 504, 529]);
/** Errors of the gateway that say that a deployment cannot serve now. */
const FAILED_CODES: ReadonlySet<ApiErrorCode> = new Set<ApiErrorCode>([
  'deployment_not_ready',
  'deployment_paused',
  'deployment_stopping',
  'deployment_failed',
  'upstream_unavailable',
  'upstream_timeout',
]);

/**
 * Returns the deployments that get a request, in order: those that its client could call as well. Only an inference
 * request may be repeated.
 */
export function chainOf(
  {
    target,
    address,
    request,
    grant,
  }: { target: Target; address: DeploymentAddress; request: { method: string }; grant: Granted | undefined },
  targets: Targets,
  canRepeat: boolean,
): Target[] {
  const { path } = address;
  if (!canRepeat || target.fallbacks.length === 0 || !isRepeatable({ method: request.method, path })) return [target];
  const others = target.fallbacks.flatMap((id) => targets.findById(id) ?? []);
  return [target, ...others.filter((other) => other.state !== 'deleting' && isOpenTo(other, grant))];
}

function isOpenTo({ accessControl, ownerId, deploymentId }: Target, grant: Granted | undefined): boolean {
  const { reach = [] } = grant ?? {};
  return !accessControl || (grant?.ownerId === ownerId && mayCall(reach, deploymentId));
}

/** Whether the next deployment may get a request after this error, as long as the client has seen nothing. */
export function isFailure(error: unknown): boolean {
  return error instanceof UpstreamError || FAILED_CODES.has(toApiError(error).code);
}

export function isFailedStatus(status: number): boolean {
  return FAILED_STATUSES.has(status);
}

/** A deployment that could not serve a request, and why. */
export class PassedOver {
  constructor(
    readonly target: Pick<Target, 'slug'>,
    readonly reason: string,
  ) {}

  toString(): string {
    return `${this.target.slug} (${this.reason})`;
  }
}

export function reasonOf(error: unknown): string {
  const cause = error instanceof ApiError ? error.cause : error;
  return cause instanceof UpstreamError ? cause.reason : toApiError(error).code;
}

/** Names the deployments before the one that responded. */
export function passedOverHeader(passedOver: readonly PassedOver[] = []): Record<string, string> {
  return passedOver.length === 0 ? {} : { 'X-Capstan-Passed-Over': passedOver.join(', ') };
}

/** The error of the last deployment, with what became of those before it. */
export function withPassedOver(error: unknown, passedOver: readonly PassedOver[] = []): unknown {
  if (passedOver.length === 0 || !(error instanceof ApiError)) return error;
  const { code, message, param, headers } = error;
  return new ApiError(code, `${message}. Before it: ${passedOver.join(', ')}`, {
    param,
    headers: { ...headers, ...passedOverHeader(passedOver) },
    cause: error,
  });
}

/** The time limit until the first byte of one attempt. */
export class FirstByteLimit {
  readonly #controller = new AbortController();
  readonly #timer: NodeJS.Timeout;

  constructor(limitMs: number) {
    this.#timer = setTimeout(
      () => this.#controller.abort(new UpstreamError('timeout', true, false, `no first byte within ${limitMs} ms`)),
      limitMs,
    );
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Rejects when the time is over. The usage of a response whose client has left is read without a limit. */
  before<T>(ready: Promise<T>, client: AbortSignal): Promise<T> {
    const { signal } = this;
    const over = new Promise<never>((_resolve, reject) => {
      const end = (): void => {
        if (!client.aborted) reject(signal.reason as Error);
      };
      if (signal.aborted) end();
      else signal.addEventListener('abort', end, { once: true });
    });
    return Promise.race([ready, over]);
  }

  /** The first byte has arrived, or the attempt has failed. */
  end(): void {
    clearTimeout(this.#timer);
  }
}

/** Returns what a whole body names as its model, or undefined if it has no such field. */
export async function modelOf(whole: Buffer): Promise<RequestedModel | undefined> {
  try {
    const field = await findModel(whole);
    if (field === undefined) return undefined;
    return { requested: field.value, inner: undefined, body: wholeBody(whole, field) };
  } catch {
    return undefined;
  }
}
