import { join } from 'node:path';
import type { EngineInfo } from '../../ts';
import { UsageError } from '../base/usage-error';
import { anyOf } from '../base/words';
import { isFile, parseJsonObject, readTextFile } from './flag-values';

type SamplingDefaults = EngineInfo['samplingDefaults'];

const FIELDS: Readonly<Record<string, keyof SamplingDefaults>> = {
  temperature: 'temperature',
  top_p: 'topP',
  top_k: 'topK',
  repetition_penalty: 'repetitionPenalty',
};

/** Reads sampling defaults from a `generation_config.json`. `path` is the file or its directory. */
export function readGenerationConfig(path: string, source: string): SamplingDefaults {
  const file = isFile(path) ? path : join(path, 'generation_config.json');
  return toSamplingDefaults(parseJsonObject(readTextFile(file, source), `${source}: ${file}`), source, 'skip');
}

/**
 * @param others What to do with fields that are not sampling defaults. Generation configs have many; flags must not.
 */
export function toSamplingDefaults(
  values: Readonly<Record<string, unknown>>,
  source: string,
  others: 'refuse' | 'skip',
): SamplingDefaults {
  const defaults: SamplingDefaults = {};
  for (const [field, value] of Object.entries(values)) {
    if (!Object.hasOwn(FIELDS, field)) {
      if (others === 'refuse')
        throw new UsageError(`${source}: expected ${anyOf(Object.keys(FIELDS))}, got '${field}'`);
      continue;
    }
    if (value === null) continue;
    if (typeof value !== 'number')
      throw new UsageError(`${source}: ${field}: expected a number, got ${JSON.stringify(value)}`);
    defaults[FIELDS[field]] = value;
  }
  return defaults;
}
