import type { SamplingDefaults } from '../../sampling';
import type { JsonReader } from '../json-file';

/** Reads the sampling defaults that newer files have, as generation_config.json has them. */
export function readSampling(metadata: JsonReader): SamplingDefaults {
  const number = (name: string, max: number): number | undefined => {
    const key = `general.sampling.${name}`;
    const value = metadata.raw(key);
    if (value === undefined) return undefined;
    if (typeof value !== 'number' || !(value >= 0)) throw metadata.mismatch(key, 'a number of 0 or more', value);
    return Math.min(value, max);
  };
  const defaults = {
    temperature: number('temp', Infinity),
    topK: number('top_k', Infinity),
    topP: number('top_p', 1),
    minP: number('min_p', 1),
    repetitionPenalty: number('penalty_repeat', Infinity),
  };
  const isSet = ([name, value]: [string, unknown]) =>
    value !== undefined && !(name === 'repetitionPenalty' && value === 0);
  return Object.fromEntries(Object.entries(defaults).filter(isSet));
}
