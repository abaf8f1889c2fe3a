/** Limits of the batches of one server. */
export interface BatchLimits {
  /** Bytes of all files together: those of clients and results. */
  maxStorageBytes: number;
  /** Batches that have not ended. */
  maxOpenBatches: number;
  /** Lines that run at the same time, at most. Undefined: 16 on the CPU, all slots for sequences on CUDA. */
  concurrency?: number | undefined;
}

export const DEFAULT_BATCH_LIMITS: BatchLimits = { maxStorageBytes: 10 * 2 ** 30, maxOpenBatches: 100 };

/** Requests of one batch, as at OpenAI. */
export const MAX_LINES = 50_000;
/** Bytes of one line of an input file. */
export const MAX_LINE_BYTES = 8 * 2 ** 20;
/** Models that the lines of one batch name. */
export const MAX_MODELS = 100;
/** Maximum bytes of all lines in progress. One owner may use half. */
export const MAX_BYTES_IN_PROGRESS = 256 * 2 ** 20;
export const MAX_CUSTOM_ID_LENGTH = 512;
/** Files of one server. */
export const MAX_FILES = 10_000;
/** Batches that are kept. The oldest ones that have ended are forgotten first. */
export const MAX_BATCHES = 10_000;
/** Errors of an input file that are reported. */
export const MAX_ERRORS = 100;
/** Batches whose lines run in turn. Others wait for one of them to end. */
export const MAX_RUNNING_BATCHES = 8;
export const MAX_WINDOW_S = 30 * 86_400;
