/** Parsing of unusual JSON bodies. */
import type { ApiError } from '../../../../server/base/errors';
import { parseJsonText } from '../../../../server/base/json/json-text';

const parse = (text: string | Buffer) => parseJsonText(Buffer.isBuffer(text) ? text : Buffer.from(text));

function errorOf(text: string | Buffer): ApiError {
  try {
    parse(text);
  } catch (error) {
    return error as ApiError;
  }
  throw new Error('expected an error');
}

test.each<[name: string, text: string | Buffer]>([
  ['nothing', ''],
  ['half an object', '{"a":'],
  ['a comma too many', '[1,]'],
  ['NaN', '{"a":NaN}'],
  ['Infinity', '[Infinity]'],
  ['single quotes', "{'a':1}"],
  ['a byte order mark', '\ufeff{}'],
  ['two values', '{}{}'],
  ['a control character in a string', '{"a":"\u0001"}'],
  ['bytes that are no UTF-8', Buffer.from([0x22, 0xff, 0x22])],
  ['a surrogate in UTF-8', Buffer.from([0x22, 0xed, 0xa0, 0x80, 0x22])],
  ['half of a pair by escape', '{"a":"x\\ud83d"}'],
  ['the other half', '["\\uDE00"]'],
  ['half of a pair in a key', '{"a":{"\\ud83d":1}}'],
  ['257 levels', '['.repeat(257) + ']'.repeat(257)],
  ['millions of levels', '['.repeat(4_000_000)],
  ['levels of objects', '{"a":'.repeat(300) + '1' + '}'.repeat(300)],
])('refuses %s with invalid_json', (_name, text) => {
  const error = errorOf(text);
  expect([error.code, error.status, error.param]).toEqual(['invalid_json', 400, null]);
  expect(error.message.length).toBeLessThan(150);
});

test.each<[name: string, text: string, value: unknown]>([
  ['whole pairs by escape', '"\\ud83d\\ude00"', '😀'],
  ['NUL', '"a\\u0000b"', 'a\0b'],
  ['brackets in strings', JSON.stringify('['.repeat(1000)), '['.repeat(1000)],
  ['escaped quotes', '["\\"[[[\\\\"]', ['"[[[\\']],
  ['256 levels', '['.repeat(256) + ']'.repeat(256), JSON.parse('['.repeat(256) + ']'.repeat(256))],
  ['the last of equal keys', '{"a":1,"a":2}', { a: 2 }],
  ['a number beyond doubles', '[1e999]', [Infinity]],
])('accepts %s', (_name, text, value) => {
  expect(parse(text).value).toEqual(value);
});

test('keeps a key named __proto__', () => {
  const { value } = parse('{"__proto__":{"temperature":5}}') as { value: { temperature?: number } };
  expect(Object.keys(value)).toEqual(['__proto__']);
  expect(value.temperature).toBeUndefined();
});

test.each<[text: string, seed: bigint | undefined]>([
  ['{"seed":9223372036854775807}', 9223372036854775807n],
  ['{"seed" : -9223372036854775808 }', -9223372036854775808n],
  ['{"a":{"seed":5},"seed":\n7}', 7n],
  ['{"seed":1,"seed":2}', 2n],
  ['{"a":{"seed":5}}', undefined],
  ['{"a":"\\"seed\\":5"}', undefined],
  ['{"seed":1.0}', undefined],
  ['{"seed":1e3}', undefined],
  ['{"seed":null}', undefined],
  ['[{"seed":1}]', undefined],
  ['{"a":["seed",1]}', undefined],
  ['{"x":"seed","y":1}', undefined],
  ['{"seed":9007199254740993,"b":[{}]}', 9007199254740993n],
])('%s has the seed %s', (text, seed) => {
  expect(parse(text).seed).toBe(seed);
});
