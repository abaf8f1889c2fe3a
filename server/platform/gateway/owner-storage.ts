import type { HttpReply, Reach, StreamedRequest } from 'capstan/internal';
import type { DeploymentAddress } from './address';
import type { Target } from './targets';

/** A request to what is kept for the owner of its key. */
export interface OwnerRequest {
  readonly requestId: string;
  readonly keyId: string;
  readonly ownerId: string;
  /** The deployment whose URL got the request. Undefined: the API of all deployments. */
  readonly deploymentId: string | undefined;
  readonly reach: Reach;
}

/** A request for a response or a chat completion, or one that counts the tokens of the input of a response. */
export type KeptRequest = Pick<OwnerRequest, 'requestId' | 'ownerId' | 'reach'> & {
  readonly deploymentId: string;
  readonly kind: 'response' | 'count' | 'completion';
};

/** The responses, chat completions, files and batches of the owners of keys. */
export interface OwnerStorage {
  /** Whether such requests are answered here and not by a replica. */
  serves(method: string, path: string): boolean;
  /** Answers a request. Throws ApiError. */
  handle(owner: OwnerRequest, request: StreamedRequest, reply: HttpReply): Promise<void>;
  /**
   * Prepares a request whose response is kept, or one that continues a kept response. Returns undefined for any other.
   * Throws ApiError.
   */
  keepResponse(request: KeptRequest, body: Buffer, reply: HttpReply): Promise<KeptResponse | undefined>;
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

/** Whether the service keeps what is made at this address: that of all deployments, or one without other routes. */
export function hasStorage({ isApi }: DeploymentAddress, target: Pick<Target, 'hasStorage'>): boolean {
  return isApi === true || target.hasStorage === true;
}
