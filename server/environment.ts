import type { NamedFlag } from './flags';
import { FLAG_NAMES, type FlagNames, Given, isSwitch } from './given';
import { parseBoolean } from './flag-values';

/**
 * What the environment says: `CAPSTAN_` and the name of a flag in capitals, `CAPSTAN_MAX_MODEL_LEN=8K`; a switch is `true` or `false`, lists
 * are parted by commas, keys by blanks. An empty variable says nothing.
 */
export function fromEnvironment(env: NodeJS.ProcessEnv, flagNames: FlagNames = FLAG_NAMES): Given {
  const given = new Given();
  // The flag's own variable comes last and wins.
  const names = [...flagNames].filter(([name]) => name.startsWith('--'));
  for (const [, { flag }] of names)
    for (const variable of 'variables' in flag ? (flag.variables ?? []) : [])
      take(given, { flag, isNegation: false }, variable, env[variable]);
  for (const [name, flagName] of names) {
    const variable = `CAPSTAN_${name.slice(2).replaceAll('-', '_').toUpperCase()}`;
    take(given, flagName, variable, env[variable]);
  }
  return given;
}

function take(given: Given, name: Parameters<Given['add']>[0], variable: string, value: string | undefined): void {
  if (value === undefined || value === '') return;
  // In a cluster a service that is called capstan sets CAPSTAN_PORT to its address.
  if (variable === 'CAPSTAN_PORT' && /^(tcp|udp|sctp):\/\//.test(value)) return;
  for (const part of split(name.flag as NamedFlag, value))
    given.add(name, isSwitch(name.flag) ? String(parseBoolean(part, variable)) : part, variable);
}

function split({ separator }: NamedFlag, value: string): string[] {
  if (separator === undefined || value.startsWith('[')) return [value];
  return value.split(separator === ' ' ? /\s+/ : /\s*,\s*/).filter((part) => part !== '');
}
