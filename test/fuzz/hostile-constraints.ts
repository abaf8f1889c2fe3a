/** Schemas, patterns and grammars that are hard to compile, and random ones. */
import type { Random } from '../../server/bench/random';
import { hostileJson, nested, pick } from './hostile-json';

const SCHEMAS = [
  '{"$ref": "#"}',
  '{"$ref": "#/a/b"}',
  '{"$ref": "http://example.com/x"}',
  '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}',
  '{"allOf": [{"$ref": "#"}]}',
  '{"anyOf": []}',
  '{"anyOf": [{"$ref": "#"}, {"type": "null"}]}',
  '{"type": "string", "minLength": 1000000000}',
  '{"type": "string", "maxLength": 1000000000}',
  '{"type": "string", "minLength": 5, "maxLength": 2}',
  '{"type": "array", "minItems": 1000000000}',
  '{"type": "array", "items": {"type": "array", "minItems": 1000, "items": {"minItems": 1000, "type": "array"}}}',
  '{"type": "string", "pattern": "(a+)+$"}',
  '{"type": "string", "pattern": "(a{1000}){1000}"}',
  '{"type": "string", "pattern": "["}',
  '{"type": "string", "pattern": "(?=a)b"}',
  '{"type": "string", "pattern": "(a)\\\\1"}',
  '{"type": "string", "format": "uuid"}',
  '{"type": "string", "format": "zzz"}',
  '{"type": "integer", "minimum": 1e308, "maximum": -1e308}',
  '{"type": "integer", "minimum": 0.5, "maximum": 0.6}',
  '{"type": "number", "multipleOf": 0}',
  '{"type": "integer", "minimum": -1e30, "maximum": 1e30}',
  '{"type": "number", "minimum": 1e999}',
  '{"type": "number", "minimum": 1, "maximum": 1, "multipleOf": 5e-324}',
  '{"type": "number", "exclusiveMinimum": 1e-320, "exclusiveMaximum": 1.7976931348623157e308}',
  '{"type": "object", "required": ["a"], "properties": {}, "additionalProperties": false}',
  '{"type": "object", "properties": {"a": false}, "required": ["a"]}',
  '{"type": []}',
  '{"type": "zzz"}',
  '{"type": ["string", "zzz"]}',
  '{"enum": []}',
  '{"const": {"a": [1]}}',
  '{"not": {}}',
  '{"if": {}, "then": {}, "else": false}',
  '{"patternProperties": {"(": {}}}',
  '{"unevaluatedProperties": false}',
  '{"dependentRequired": {"a": ["b"]}}',
  'true',
  'false',
  '{}',
  '{"properties": {"__proto__": {"type": "string"}}}',
  '{"properties": {"": {}}}',
];

export function hostileSchema(random: Random): string {
  const roll = random.next();
  if (roll < 0.5) return pick(random, SCHEMAS);
  if (roll < 0.8) return randomSchema(random, 4);
  if (roll < 0.84)
    return `{"enum": [${Array.from({ length: pick(random, [100, 20_000]) }, (_, i) => `"v${i}"`).join(',')}]}`;
  if (roll < 0.88)
    return `{"type": "object", "properties": {${Array.from({ length: pick(random, [50, 3000]) }, (_, i) => `"p${i}": {"type": "string"}`).join(',')}}}`;
  if (roll < 0.9) return longSchema(random);
  if (roll < 0.92) return '{"properties": {"a": '.repeat(pick(random, [30, 3000])).concat('{}', '}}'.repeat(30));
  if (roll < 0.95) return `{"type": "string", "pattern": ${JSON.stringify(hostileRegex(random))}}`;
  return roll < 0.97 ? nested(500, false) : hostileJson(random);
}

/** Long names, deep nesting and long lists at places where the conversion might recurse or take the product. */
function longSchema(random: Random): string {
  const many = <T>(item: (i: number) => T): T[] =>
    Array.from({ length: pick(random, [10, 1000, 12_000]) }, (_, i) => item(i));
  const around = (before: string, after: string) => {
    const depth = pick(random, [60, 130, 5000]);
    return `${before.repeat(depth)}{}${after.repeat(depth)}`;
  };
  const schemas: (() => unknown)[] = [
    () => ({
      properties: { [pick(random, ['x', '😀', '"']).repeat(pick(random, [100, 3000, 60_000]))]: {} },
      additionalProperties: true,
    }),
    () => ({
      properties: Object.fromEntries(many((i) => [`${'n'.repeat(i % 50)}${i}`, { type: 'null' }])),
      additionalProperties: true,
    }),
    () => ({ required: many((i) => `r${i}`) }),
    () => ({ enum: many((i) => [i, `v${i}`]) }),
    () => ({ type: many(() => 'string') }),
    () => ({ uniqueItems: true, items: { enum: many((i) => i) } }),
    () => ({ propertyNames: { enum: many((i) => `n${i}`) }, additionalProperties: { type: 'integer', multipleOf: 7 } }),
    () => ({ anyOf: many((i) => ({ const: i })) }),
    () => ({ allOf: many((i) => ({ pattern: `a${i}` })) }),
    () => ({
      properties: Object.fromEntries(many((i) => [`p${i}`, { format: 'email', pattern: '^a', maxLength: 20 + i }])),
    }),
    () => ({ pattern: many((i) => `a${i}`).join('|'), minLength: 3, maxLength: 9 }),
    () => ({
      $defs: Object.fromEntries(many((i) => [`d${i}`, { items: { $ref: `#/$defs/d${i + 1}` } }])),
      $ref: '#/$defs/d0',
    }),
  ];
  if (random.next() < 0.7) return JSON.stringify(pick(random, schemas)());
  return pick(random, [
    () => around('{"allOf": [', ']}'),
    () => around('{"anyOf": [{"type": "null"}, ', ']}'),
    () => around('{"propertyNames": ', '}'),
    () => `{"const": ${around('{"a": ', '}')}}`,
    () => `{"enum": [${around('[', ']')}]}`,
  ])();
}

const EXTREMES = ['5e-324', '-5e-324', '1e-20', '1e20', '-1e308', '1.7976931348623157e308'];

const TYPES = ['string', 'integer', 'number', 'boolean', 'null', 'object', 'array'];

function randomSchema(random: Random, depth: number): string {
  const fields: string[] = [];
  const sub = () => (depth === 0 ? '{}' : randomSchema(random, depth - 1));
  const add: Record<string, () => string> = {
    type: () => (random.next() < 0.8 ? `"${pick(random, TYPES)}"` : `["${pick(random, TYPES)}", "null"]`),
    properties: () => `{"a": ${sub()}, "b": ${sub()}}`,
    required: () => pick(random, ['["a"]', '["a", "b"]', '["zz"]', '[]']),
    additionalProperties: () => pick(random, ['false', 'true', sub()]),
    items: sub,
    prefixItems: () => `[${sub()}, ${sub()}]`,
    minItems: () => String(random.integer(0, 9)),
    maxItems: () => String(random.integer(0, 9)),
    anyOf: () => `[${sub()}, ${sub()}]`,
    oneOf: () => `[${sub()}, ${sub()}]`,
    allOf: () => `[${sub()}]`,
    enum: () => pick(random, ['["x", 1, null]', '[{"a": 1}]', '["\\ud800"]', '[1e999]']),
    const: () => hostileJson(random),
    minLength: () => String(random.integer(0, 9)),
    maxLength: () => String(random.integer(0, 40)),
    pattern: () => JSON.stringify(hostileRegex(random)),
    minimum: () => pick(random, ['-5', '0', '3.5', ...EXTREMES]),
    maximum: () => pick(random, ['-9', '10', '1', ...EXTREMES]),
    exclusiveMinimum: () => pick(random, ['0', 'true', ...EXTREMES]),
    exclusiveMaximum: () => pick(random, ['1', ...EXTREMES]),
    multipleOf: () => pick(random, ['2', '0.1', '0', ...EXTREMES]),
    format: () => pick(random, ['"date-time"', '"uuid"', '"email"', '"x"']),
    $ref: () => pick(random, ['"#"', '"#/$defs/a"', '"#/properties/a"']),
    $defs: () => `{"a": ${sub()}}`,
    minProperties: () => '1',
    uniqueItems: () => 'true',
    propertyNames: () => pick(random, [sub(), '{"enum": ["a", "b"]}', '{"pattern": "^a", "maxLength": 4}']),
    unevaluatedProperties: () => 'false',
    nullable: () => 'true',
    $anchor: () => '"a"',
  };
  for (let count = random.integer(1, 4); count > 0; count--) {
    const name = pick(random, Object.keys(add));
    fields.push(`"${name}": ${random.next() < 0.07 ? hostileJson(random) : add[name]()}`);
  }
  return `{${fields.join(', ')}}`;
}

const REGEXES = [
  '(a+)+$',
  '(a|a)*b',
  '(a{1000}){1000}',
  'a{1,1000000000}',
  'a{2,1}',
  '[',
  '(',
  ')',
  '*',
  '+a',
  '(?=a)b',
  '(?<!a)b',
  '(a)\\1',
  '\\',
  '[z-a]',
  '[^]',
  '[]',
  '\\p{L}{1,5}',
  '\\u{110000}',
  '\\ud800',
  '\u0000',
  '.*.*.*.*.*x',
  '^$',
  '$^',
  '',
  '(|)',
  '()*',
  '(a*)*',
  '\\b\\B',
  '[\\d\\W]{3}',
  '(?i)abc',
  '^(?=.*a.{300}$)(?=.*b.{300}$)',
  '(?!(?!(?!a)))',
  '(^a|b$)*',
  '(?=(?=(?=a*)*)*)',
  'a?'.repeat(3000),
  '(?P<n>a)',
  '(?:',
  '\\xZZ',
  '\\c',
  '{1}',
  'a{,5}',
  'a{-1}',
  '😀+',
  '[😀-😎]{1,3}',
  'x'.repeat(5000),
  '('.repeat(2000) + ')'.repeat(2000),
  '(a?){300}a{300}',
  '[a-z]{1,64}(-[a-z]{1,64}){0,64}',
];

export function hostileRegex(random: Random): string {
  if (random.next() < 0.6) return pick(random, REGEXES);
  return Array.from({ length: random.integer(1, 25) }, () =>
    pick(random, [...'abc()[]{}*+?|\\^$.-,019', '\\d', '\\w', '\\s', '[a-f]', '(?:', '{2,5}']),
  ).join('');
}

const GRAMMARS = [
  'root ::= root',
  'root ::= root "a" | "a"',
  'root ::= a\na ::= b\nb ::= a',
  'root ::= "a" root | ""',
  'root ::= x',
  'x ::= "a"',
  '',
  '\u0000',
  'root ::= "',
  'root ::= [',
  'root ::= [z-a]',
  'root ::= ("a"',
  'root ::= "a"{1000000000}',
  'root ::= ("a"{1000}){1000}',
  'root ::= "a"{2,1}',
  'root ::= ""',
  'root ::= "" ""*',
  'root ::= ("" | "a")*',
  'root ::= [^a]*',
  'root ::= .{3}',
  'root = "a"',
  'root ::= "a" | | "b"',
  'root ::= "\\x"',
  'root ::= "\\uD800"',
  'root ::= "😀"+',
  '# nothing',
  'root ::= "a" # c\n  | "b"',
  'root ::= "a"\nroot ::= "b"',
  `root ::= ${'('.repeat(3000)}"a"${')'.repeat(3000)}`,
  Array.from({ length: 5000 }, (_, i) => `${i === 0 ? 'root' : `r${i}`} ::= "a" r${i + 1}`)
    .join('\n')
    .concat('\nr5000 ::= "b"'),
];

export function hostileGrammar(random: Random): string {
  const text = pick(random, GRAMMARS);
  if (random.next() < 0.6) return text;
  const at = random.integer(0, text.length);
  return (
    text.slice(0, at) +
    pick(random, ['"', '(', ')', '|', '\n', '::=', '{', '}', '[', ' ', '\\', 'root']) +
    text.slice(at + random.integer(0, 2))
  );
}
