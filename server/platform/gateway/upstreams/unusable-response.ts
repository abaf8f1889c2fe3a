import { ApiError, type ApiErrorCode, type ReplicaUsage } from 'capstan/internal';

/** What an upstream charges for a response. */
export interface Spent {
  /** undefined: the response does not report it. */
  usage?: ReplicaUsage | undefined;
  /** Bytes that arrived. */
  numBytes: number;
}

/** The response of an upstream with a status of success, which no client can get. The upstream may charge for it. */
export class UnusableResponse extends ApiError {
  constructor(
    message: string,
    readonly spent: Spent,
    { code = 'upstream_unavailable', cause }: { code?: ApiErrorCode; cause?: unknown } = {},
  ) {
    super(code, message, { cause });
  }
}
