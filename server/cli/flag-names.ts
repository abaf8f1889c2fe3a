import { UsageError } from '../base/usage-error';
import type { NamedFlag } from './serve-flags';
import type { VllmFlag } from './vllm-flags';

/** A name on the command line: its flag, and whether it means `--no-FLAG`. */
export interface FlagName {
  flag: NamedFlag | VllmFlag;
  isNegation: boolean;
}

/** The flags of a command by name, with dashes. */
export type FlagNames = ReadonlyMap<string, FlagName>;

/** Returns every name of each flag as written on the command line, including aliases and negations. */
export function flagNamesOf(flags: readonly (NamedFlag | VllmFlag)[]): FlagNames {
  return new Map<string, FlagName>(
    flags.flatMap((flag) => {
      const named = (name: string, isNegation: boolean): [string, FlagName] => [name, { flag, isNegation }];
      const negations = isSwitch(flag)
        ? [`--no-${flag.name}`, ...('negations' in flag ? (flag.negations ?? []) : [])]
        : [];
      return [
        ...[`--${flag.name}`, ...(flag.aliases ?? [])].map((name) => named(name, false)),
        ...negations.map((name) => named(name, true)),
      ];
    }),
  );
}

export function isSwitch(flag: NamedFlag | VllmFlag): boolean {
  return 'takes' in flag ? flag.takes === 'nothing' : flag.value === undefined;
}

/** Returns the values of a flag as they would be on the command line. */
export function toValues(name: FlagName, value: unknown, place: string): string[] {
  if (isSwitch(name.flag)) {
    if (typeof value !== 'boolean')
      throw new UsageError(`${place}: expected true or false, got ${JSON.stringify(value)}`);
    return [String(value)];
  }
  if (typeof value === 'boolean') throw new UsageError(`${place}: expected a value, got ${value}`);
  const isList =
    ('separator' in name.flag && name.flag.separator !== undefined) ||
    ('takes' in name.flag && name.flag.takes === 'values');
  if (Array.isArray(value) && !isList) throw new UsageError(`${place}: expected one value, got a list`);
  return (Array.isArray(value) ? value : [value]).map((item: unknown) =>
    typeof item === 'string' ? item : JSON.stringify(item),
  );
}
