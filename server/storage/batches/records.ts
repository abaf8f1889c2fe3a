import { covers, type Reach } from '../../base/reach';

/** Who may have an object. */
export interface Owned {
  /** Empty without access control. */
  readonly ownerId: string;
  /** The deployments that its maker may call, or the one at whose URL it was made. Absent: all of the owner. */
  readonly deployments?: readonly string[];
}

/** Returns who may have a new object. @param deploymentId The deployment at whose URL it is made. */
export function newOwned(ownerId: string, reach: Reach, deploymentId: string | undefined): Owned {
  const deployments = deploymentId === undefined ? reach : [deploymentId];
  return { ownerId, ...(deployments === null ? {} : { deployments }) };
}

/** Returns who may have the results of an object. */
export function ownedOf({ ownerId, deployments }: Owned): Owned {
  return { ownerId, ...(deployments === undefined ? {} : { deployments }) };
}

/** Whether a client may have an object. */
export function maySee({ ownerId, deployments }: Owned, reader: string, reach: Reach): boolean {
  return ownerId === reader && covers(reach, deployments ?? null);
}

/** A file of a client, or of the results of a batch. */
export interface FileRecord extends Owned {
  readonly id: string;
  readonly bytes: number;
  /** Seconds since 1970, as all times of records. */
  readonly createdAt: number;
  readonly filename: string;
  readonly purpose: 'batch' | 'batch_output';
}

export type BatchStatus =
  'validating' | 'failed' | 'in_progress' | 'finalizing' | 'completed' | 'expired' | 'cancelling' | 'cancelled';

/** Statuses in which a batch has work left. */
export const OPEN_STATUSES: ReadonlySet<BatchStatus> = new Set([
  'validating',
  'in_progress',
  'finalizing',
  'cancelling',
]);

/** Why a batch failed. */
export interface BatchError {
  code: string;
  message: string;
  param: string | null;
  /** From 1. Null if the error is not in a line. */
  line: number | null;
}

export interface BatchRecord extends Owned {
  readonly id: string;
  /** The key that created it. Undefined without access control. */
  readonly keyId?: string;
  /** The client that created it. */
  readonly address: string;
  /** As `ClientIdentity.cacheSalt`. */
  readonly cacheSalt: string;
  readonly endpoint: string;
  /** See `BatchOrder`. */
  readonly deploymentId?: string;
  readonly inputFileId: string;
  /** Where results are written. Clients see the files when the batch has ended, if they have lines. */
  readonly outputFileId: string;
  readonly errorFileId: string;
  readonly completionWindow: string;
  readonly metadata: Readonly<Record<string, string>> | null;
  readonly createdAt: number;
  readonly expiresAt: number;
  status: BatchStatus;
  /** The status at the end, set when no line runs any more. */
  end?: BatchStatus;
  /** When each status was reached. */
  times: Partial<Record<BatchStatus, number>>;
  hasOutput: boolean;
  hasErrors: boolean;
  counts: { total: number; completed: number; failed: number };
  errors: BatchError[];
}

export function isOpen({ status }: Pick<BatchRecord, 'status'>): boolean {
  return OPEN_STATUSES.has(status);
}

/** Returns a file as clients see it. */
export function fileObject({ id, bytes, createdAt, filename, purpose }: FileRecord): object {
  return { id, object: 'file', bytes, created_at: createdAt, filename, purpose, status: 'processed' };
}

/** Returns a batch as clients see it. */
export function batchObject(record: BatchRecord): object {
  const { status, times, errors, counts } = record;
  const hasEnded = !isOpen(record);
  return {
    id: record.id,
    object: 'batch',
    endpoint: record.endpoint,
    errors: errors.length === 0 ? null : { object: 'list', data: errors },
    input_file_id: record.inputFileId,
    completion_window: record.completionWindow,
    status,
    output_file_id: hasEnded && record.hasOutput ? record.outputFileId : null,
    error_file_id: hasEnded && record.hasErrors ? record.errorFileId : null,
    created_at: record.createdAt,
    in_progress_at: times.in_progress ?? null,
    expires_at: record.expiresAt,
    finalizing_at: times.finalizing ?? null,
    completed_at: times.completed ?? null,
    failed_at: times.failed ?? null,
    expired_at: times.expired ?? null,
    cancelling_at: times.cancelling ?? null,
    cancelled_at: times.cancelled ?? null,
    request_counts: { ...counts },
    metadata: record.metadata,
  };
}
