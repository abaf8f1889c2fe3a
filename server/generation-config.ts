import { join } from 'node:path';
import type { EngineInfo } from '../ts';
import { isFile, parseJsonObject, readTextFile, UsageError } from './flag-values';

type SamplingDefaults = EngineInfo['samplingDefaults'];

const FIELDS: Readonly<Record<string, keyof SamplingDefaults>> = {
  temperature: 'temperature',
  top_p: 'topP',
  top_k: 'topK',
  repetition_penalty: 'repetitionPenalty',
};

/** Sampling defaults of another model's `generation_config.json`; the file itself, or the directory that holds it. */
export function readGenerationConfig(path: string, source: string): SamplingDefaults {
  const file = isFile(path) ? path : join(path, 'generation_config.json');
  return toSamplingDefaults(parseJsonObject(readTextFile(file, source), `${source}: ${file}`), source, 'skip');
}

/** @param others Such a file holds much that is no default of sampling; of what is written for us nothing may be lost. */
export function toSamplingDefaults(
  values: Readonly<Record<string, unknown>>,
  source: string,
  others: 'refuse' | 'skip',
): SamplingDefaults {
  const defaults: SamplingDefaults = {};
  for (const [field, value] of Object.entries(values)) {
    if (!Object.hasOwn(FIELDS, field)) {
      if (others === 'refuse')
        throw new UsageError(`${source}: expected ${Object.keys(FIELDS).join(', ')}, got '${field}'`);
      continue;
    }
    if (value === null) continue;
    if (typeof value !== 'number')
      throw new UsageError(`${source}: ${field}: expected a number, got ${JSON.stringify(value)}`);
    defaults[FIELDS[field]] = value;
  }
  return defaults;
}
