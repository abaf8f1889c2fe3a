import type { NamedFlag } from './serve-flags';
import { FLAG_NAMES, type FlagNames, FlagValues, isSwitch } from './flag-sources';
import { parseBoolean } from './flag-values';

/**
 * Reads flags from environment variables: `CAPSTAN_` and the flag's name in capitals, for example
 * `CAPSTAN_MAX_MODEL_LEN=8K`. A switch is `true` or `false`. Commas separate lists, and spaces separate keys and
 * adapters. A JSON list is not separated. Empty variables are ignored.
 */
export function fromEnvironment(env: NodeJS.ProcessEnv, flagNames: FlagNames = FLAG_NAMES): FlagValues {
  const values = new FlagValues();
  // The flag's own variable is added last, so it wins.
  const names = [...flagNames].filter(([name]) => name.startsWith('--'));
  for (const [, { flag }] of names)
    for (const variable of 'variables' in flag ? (flag.variables ?? []) : [])
      addVariable(values, { flag, isNegation: false }, variable, env[variable]);
  for (const [name, flagName] of names) {
    const variable = `CAPSTAN_${name.slice(2).replaceAll('-', '_').toUpperCase()}`;
    addVariable(values, flagName, variable, env[variable]);
  }
  return values;
}

function addVariable(
  values: FlagValues,
  name: Parameters<FlagValues['add']>[0],
  variable: string,
  value: string | undefined,
): void {
  if (value === undefined || value === '') return;
  // Kubernetes sets CAPSTAN_PORT to an address if a service is called `capstan`.
  if (variable === 'CAPSTAN_PORT' && /^(tcp|udp|sctp):\/\//.test(value)) return;
  for (const part of split(name.flag as NamedFlag, value))
    values.add(name, isSwitch(name.flag) ? String(parseBoolean(part, variable)) : part, variable);
}

function split({ separator, acceptsJson = false }: NamedFlag, value: string): string[] {
  if (separator === undefined || value.startsWith('[') || (acceptsJson && value.startsWith('{'))) return [value];
  return value.split(separator === ' ' ? /\s+/ : /\s*,\s*/).filter((part) => part !== '');
}
