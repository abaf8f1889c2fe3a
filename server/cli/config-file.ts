import { basename } from 'node:path';
import { parse, YAMLParseError } from 'yaml';
import { UsageError } from '../base/usage-error';
import { readTextFile } from './flag-values';
import { type FlagNames, toValues } from './flag-names';
import { FLAG_NAMES, FlagValues } from './flag-sources';
import { nearest } from '../../ts/nearest';

/**
 * Reads flags from a YAML file. Keys are flag names with dashes or underscores. Switches are booleans, and a value that
 * is JSON on the command line may be YAML.
 */
export function fromConfigFile(path: string, source: string, flagNames: FlagNames = FLAG_NAMES): FlagValues {
  const file = basename(path);
  const settings = parseYaml(readTextFile(path, source), file);
  const values = new FlagValues();
  for (const [key, value] of Object.entries(settings)) {
    const place = `${file}: ${key}`;
    const name = flagNames.get(`--${key.replaceAll('_', '-')}`);
    if (name === undefined) throw new UsageError(`${place}: unknown setting${suggest(key, flagNames)}`);
    if (value === null || value === undefined) continue;
    for (const item of toValues(name, value, place)) values.add(name, item, place);
  }
  return values;
}

function parseYaml(text: string, file: string): Record<string, unknown> {
  let settings: unknown;
  try {
    settings = parse(text, { prettyErrors: true, maxAliasCount: 10 }) as unknown;
  } catch (error) {
    if (error instanceof YAMLParseError || error instanceof ReferenceError)
      throw new UsageError(`${file}: expected YAML: ${error.message.split('\n')[0]}`);
    throw error;
  }
  if (settings === null || settings === undefined) return {};
  if (typeof settings !== 'object' || Array.isArray(settings))
    throw new UsageError(
      `${file}: expected settings, one per line as "port: 8080", got ${Array.isArray(settings) ? 'a list' : typeof settings}`,
    );
  return settings as Record<string, unknown>;
}

function suggest(key: string, flagNames: FlagNames): string {
  const name = nearest(
    key.replaceAll('_', '-'),
    [...flagNames.keys()].filter((candidate) => candidate.startsWith('--')).map((candidate) => candidate.slice(2)),
  );
  return name === undefined ? '' : `; did you mean ${name}?`;
}
