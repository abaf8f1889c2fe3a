import type { SamplingDefaults } from '../../sampling';
import type { JsonReader } from '../json-file';

const MAX_TOP_K = 2 ** 31 - 1;

interface Field {
  field: keyof SamplingDefaults;
  key: string;
  isValid: (value: number) => boolean;
}

/** The limits of a request: with another default, every request would fail. */
const FIELDS: readonly Field[] = [
  { field: 'temperature', key: 'temp', isValid: (value) => value >= 0 },
  { field: 'topK', key: 'top_k', isValid: (value) => Number.isInteger(value) && value <= MAX_TOP_K },
  { field: 'topP', key: 'top_p', isValid: (value) => value > 0 && value <= 1 },
  { field: 'repetitionPenalty', key: 'penalty_repeat', isValid: (value) => value > 0 },
];

/**
 * Reads the sampling defaults that newer files have, as generation_config.json has them. Ignores values without a
 * meaning. A negative `top_k` means all tokens, as 0 does.
 */
export function readSampling(metadata: JsonReader): SamplingDefaults {
  const defaults: SamplingDefaults = {};
  for (const { field, key, isValid } of FIELDS) {
    const value = metadata.raw(`general.sampling.${key}`);
    if (typeof value !== 'number' || !Number.isFinite(value) || !isValid(value)) continue;
    defaults[field] = field === 'topK' ? Math.max(value, 0) : value;
  }
  return defaults;
}
