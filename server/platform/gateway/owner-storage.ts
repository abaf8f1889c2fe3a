import {
  ApiError,
  type HttpReply,
  mediaType,
  RecordedReply,
  header,
  RESPONSES_PATH,
  type StreamedRequest,
} from 'capstan/internal';
import type { DeploymentAddress } from './address';
import { modelOf } from './fallbacks';
import type { RequestedModel } from './model-api';
import { mustStream } from './model-body';
import type { Target } from './targets';

/** A request to what is kept for the owner of its key. */
export interface OwnerRequest {
  readonly requestId: string;
  readonly keyId: string;
  readonly ownerId: string;
  /** The deployment whose URL got the request. Undefined: the API of all deployments. */
  readonly deploymentId: string | undefined;
}

/** The responses, files and batches of the owners of keys. */
export interface OwnerStorage {
  /** Whether requests to this path are answered here and not by a replica. */
  serves(path: string): boolean;
  /** Answers a request. Throws ApiError. */
  handle(owner: OwnerRequest, request: StreamedRequest, reply: HttpReply): Promise<void>;
  /**
   * Prepares a request for a response that is kept, or that continues a kept one. Returns undefined for any other.
   * Throws ApiError.
   */
  keepResponse(
    owner: Pick<OwnerRequest, 'requestId' | 'ownerId'>,
    body: Buffer,
    reply: HttpReply,
  ): Promise<KeptResponse | undefined>;
}

/** A request whose response is kept as it passes. */
export interface KeptResponse {
  /** What the replica gets: the whole conversation. */
  readonly body: Buffer;
  /** Receives the response of the replica. */
  readonly reply: HttpReply;
  /** Resolves when the response has been kept and sent. Call it when the replica's response has ended. */
  settled(): Promise<void>;
}

/** The parts of a call that change if its response is kept. */
export interface KeptCall {
  request: StreamedRequest;
  model: RequestedModel | undefined;
  reply: RecordedReply;
  settled(): Promise<void>;
}

/** Whether the service keeps what is made at this address: that of all deployments, or one without routes of its own. */
export function hasStorage({ isApi }: DeploymentAddress, target: Pick<Target, 'hasStorage'>): boolean {
  return isApi === true || target.hasStorage === true;
}

/**
 * Prepares a call whose response is kept. Returns undefined for any other call. Bodies that are forwarded while they
 * arrive are not read, so their responses are not kept.
 */
export async function keepCall(
  storage: OwnerStorage,
  owner: Pick<OwnerRequest, 'requestId' | 'ownerId'>,
  { request, path, model, reply }: Omit<KeptCall, 'settled'> & { path: string },
): Promise<KeptCall | undefined> {
  if (request.method !== 'POST' || path !== RESPONSES_PATH || mustStream(request)) return undefined;
  if ((mediaType(request) ?? 'application/json') !== 'application/json') return undefined;
  if (header(request, 'content-encoding') !== undefined) return undefined;
  const whole = model === undefined ? await request.readBody() : model.body.whole;
  if (whole === undefined) return undefined;
  const kept = await storage.keepResponse(owner, whole, reply);
  if (kept === undefined) return { request: withBody(request, whole), model, reply, settled: () => Promise.resolve() };
  return {
    request: withBody(request, kept.body),
    model: model === undefined ? undefined : withWhole(model, kept.body),
    reply: new RecordedReply(kept.reply, {}),
    settled: () => kept.settled(),
  };
}

function withBody(request: StreamedRequest, body: Buffer): StreamedRequest {
  return {
    ...request,
    headers: request.headers.map(([name, value]) => [name, name === 'content-length' ? String(body.length) : value]),
    readBody: () => Promise.resolve(body),
    bodyPieces: async function* () {
      yield await Promise.resolve(body);
    },
  };
}

function withWhole(model: RequestedModel, whole: Buffer): RequestedModel {
  const changed = modelOf(whole);
  if (changed === undefined) throw new ApiError('internal_error', 'A request for a response has lost its field model');
  return { ...model, body: changed.body };
}
