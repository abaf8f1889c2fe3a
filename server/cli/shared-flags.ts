import type { TracingOptions } from '../base/traces/open-tracing';
import type { BatchLimits } from '../storage/batches/limits';
import type { StoreLimits } from '../storage/responses/store';
import { parseBytes, parseCount, parseInteger } from './flag-values';

interface SharedOptions {
  batches: BatchLimits;
  storedResponses: StoreLimits;
  traces: TracingOptions;
}

/** The value of a flag and its effect. The commands add the help. */
interface FlagEffect {
  name: string;
  value: string;
  apply: (options: SharedOptions, value: string, source: string) => void;
}

/** Flags that `capstan serve` and `capstan up` both have. */
export const SHARED_FLAGS = {
  maxStoredResponseBytes: {
    name: 'max-stored-response-bytes',
    value: '<bytes>',
    apply: (o, value, source) => {
      o.storedResponses.maxBytes = parseCount(value, source, 0);
    },
  },
  storedResponseDays: {
    name: 'stored-response-days',
    value: '<days>',
    apply: (o, value, source) => {
      o.storedResponses.ttlMs = parseInteger(value, source, 1) * 86_400_000;
    },
  },
  maxBatches: {
    name: 'max-batches',
    value: '<n>',
    apply: (o, value, source) => {
      o.batches.maxOpenBatches = parseCount(value, source);
    },
  },
  maxBatchStorage: {
    name: 'max-batch-storage',
    value: '<bytes>',
    apply: (o, value, source) => {
      o.batches.maxStorageBytes = parseBytes(value, source);
    },
  },
  batchConcurrency: {
    name: 'batch-concurrency',
    value: '<n>',
    apply: (o, value, source) => {
      o.batches.concurrency = parseCount(value, source);
    },
  },
  otlpTracesEndpoint: {
    name: 'otlp-traces-endpoint',
    value: '<url>',
    apply: (o, value) => {
      o.traces.endpoint = value;
    },
  },
} satisfies Record<string, FlagEffect>;
