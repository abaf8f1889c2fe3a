/**
 * Unexpected JSON texts for a field. They are texts because 1e999, lone surrogates and invalid syntax have no value.
 */
import type { Random } from '../../server/bench/random';

export function pick<T>(random: Random, choices: readonly T[]): T {
  return choices[random.integer(0, choices.length - 1)];
}

const SCALARS = [
  'null',
  'true',
  'false',
  '0',
  '-0',
  '1',
  '-1',
  '2',
  '3',
  '0.5',
  '2.5',
  '-2.5',
  '16.0',
  '1e2',
  '1e999',
  '-1e999',
  '1e-999',
  '9007199254740993',
  '18446744073709551616',
  '-9223372036854775809',
  '1'.repeat(400),
  'NaN',
  'Infinity',
  '-Infinity',
  'undefined',
  '01',
  '0x10',
  '+1',
  '1.',
  '.5',
  "'a'",
  'tru',
  '{',
  ']',
  ',',
  '"',
  '"\\',
  '"\\u12',
  '/* */1',
  '\ufeff1',
  '""',
  '" "',
  '"a"',
  '"1"',
  '"true"',
  '"null"',
  '"\\u0000"',
  '"a\\u0000b"',
  '"\\ud800"',
  '"\\udfff\\ud800"',
  '"\\ud83d"',
  '"\\ud83d\\ude00"',
  '"\\\\"',
  '"\\/"',
  '"\\b\\f\\n\\r\\t"',
  '"\x01"',
  '"\n"',
  '"\u202e\u2028"',
  '"<|im_start|>system"',
  '"<|im_end|>"',
  '"<tool_call>"',
  '"{{ 7 * 7 }}"',
  '"{% raw %}"',
  '"../../etc/passwd"',
  '"__proto__"',
  '"constructor"',
  '"-1"',
  '"none"',
  '"auto"',
  '"required"',
  '"json_object"',
  '"text"',
  '[]',
  '{}',
  '[[]]',
  '[{}]',
  '[null]',
  '[""]',
  '[1]',
  '[-1]',
  '[1.5]',
  '[4294967296]',
  '[true]',
  '["a"]',
  '["a", 1]',
  '[[1], [2]]',
  '[[[1]]]',
  '{"__proto__": {"x": 1}}',
  '{"constructor": {"prototype": {"x": 1}}}',
  '{"toString": 1, "valueOf": 1}',
  '{"hasOwnProperty": null}',
  '{"": 1}',
  '{"a": 1, "a": 2}',
  '{"type": 1}',
  '{"type": "function"}',
  '{"type": null}',
  '{"-1": 1}',
  '{"1e9": 1}',
  '{"99999999999": 1}',
  '{"0": 1000}',
  '{"0": "1"}',
];

export function hostileJson(random: Random): string {
  const roll = random.next();
  if (roll < 0.8) return pick(random, SCALARS);
  if (roll < 0.85) return nested(pick(random, [50, 1000, 20_000, 200_000]), random.next() < 0.5);
  if (roll < 0.9)
    return JSON.stringify(
      pick(random, ['a', 'ü', '😀', ' ', '\u0000', 'ab ']).repeat(pick(random, [200, 5000, 70_000])),
    );
  if (roll < 0.95) return `[${Array.from({ length: random.integer(1, 6) }, () => hostileJson(random)).join(',')}]`;
  return `{${Array.from({ length: random.integer(1, 4) }, (_, i) => `"${pick(random, ['type', 'function', 'name', 'role', 'content', `k${i}`])}": ${hostileJson(random)}`).join(',')}}`;
}

export function nested(depth: number, isArray: boolean): string {
  return isArray ? '['.repeat(depth) + ']'.repeat(depth) : '{"a":'.repeat(depth) + '1' + '}'.repeat(depth);
}
