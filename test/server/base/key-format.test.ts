import zlib from 'node:zlib';
import { bearerKey } from '../../../server/access/check/authorization';
import { randomBase62, toBase62 } from '../../../server/base/base62';
import { crc32 } from '../../../server/base/crc32';
import { newId } from '../../../server/base/ids';
import { displayKey, generateKey, parseKey, redactKeys } from '../../../server/base/key-format';

const VECTOR = `sk-cap1_0123456789AB_${'a'.repeat(32)}1GlQkh`;

describe('key text', () => {
  test('parses the test vector of the specification', () => {
    expect(parseKey(VECTOR)).toBe('0123456789AB');
    expect(displayKey(VECTOR)).toBe('sk-cap1_0123456789AB_…lQkh');
  });

  test('1,000 generated keys differ, parse and have the specified form', () => {
    const keys = Array.from({ length: 1000 }, () => generateKey());
    expect(new Set(keys.map(({ secret }) => secret)).size).toBe(1000);
    for (const { publicId, secret } of keys) {
      expect(secret).toMatch(/^sk-cap1_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}$/);
      expect(parseKey(secret)).toBe(publicId);
      expect(displayKey(secret)).not.toContain(secret.slice(21, 53));
    }
  });

  test('a key rotation keeps the public id', () => {
    expect(parseKey(generateKey('0123456789AB').secret)).toBe('0123456789AB');
  });

  test('detects every change of one character', () => {
    for (let position = 0; position < VECTOR.length; position++) {
      for (const character of ['0', 'z', 'b', ' ', '\0', 'é']) {
        if (VECTOR[position] === character) continue;
        expect(parseKey(VECTOR.slice(0, position) + character + VECTOR.slice(position + 1))).toBeUndefined();
      }
    }
  });

  test.each(['', 'sk-', VECTOR.slice(1), `${VECTOR}a`, `${VECTOR}\n`, VECTOR.toUpperCase(), '🔑'.repeat(30)])(
    '%j is no key',
    (text) => expect(parseKey(text)).toBeUndefined(),
  );

  test('base62 pads with zeros, holds any CRC and has uniform digits', () => {
    expect(toBase62(0, 6)).toBe('000000');
    expect(toBase62(61, 6)).toBe('00000z');
    expect(toBase62(0xffffffff, 6)).toBe('4gfFC3');
    const counts = new Map<string, number>();
    for (const digit of randomBase62(62_000)) counts.set(digit, (counts.get(digit) ?? 0) + 1);
    expect(counts.size).toBe(62);
    for (const count of counts.values()) expect(Math.abs(count - 1000)).toBeLessThan(200);
  });

  test('the checksum is the CRC-32 of zlib', () => {
    const { crc32: expected } = zlib as unknown as { crc32?: (text: string) => number };
    expect(crc32('123456789')).toBe(0xcbf43926);
    if (expected !== undefined)
      for (let i = 0; i < 100; i++) {
        const text = randomBase62(i);
        expect(crc32(text)).toBe(expected(text));
      }
  });

  test('ids sort by time', () => {
    const ids = [1, 1000, 1_800_000_000_000, 1_800_000_000_001].map((ms) => newId('key', ms));
    expect([...ids].sort()).toEqual(ids);
    for (const id of ids) expect(id).toMatch(/^key_[0-9a-z]{26}$/);
  });
});

describe('redaction', () => {
  test('replaces keys, but not text that only resembles a key', () => {
    const noise = `sk-cap1_0123456789AB_${'a'.repeat(38)}`;
    expect(redactKeys(`a=${VECTOR}&b="${VECTOR}" ${noise}`)).toBe(
      `a=sk-cap1_0123456789AB_…lQkh&b="sk-cap1_0123456789AB_…lQkh" ${noise}`,
    );
    expect(redactKeys(`x${VECTOR}y`)).not.toContain('a'.repeat(32));
  });
});

describe('the Authorization header', () => {
  const parse = (...values: string[]) => bearerKey(values.map((value) => ['authorization', value] as const));

  test.each([
    ['as specified', ['Bearer k'], 'k'],
    ['scheme in lower case', ['bearer k'], 'k'],
    ['scheme in any case', ['BEARER k'], 'k'],
    ['blanks around the value', [' \tBearer k \t'], 'k'],
    ['200 characters', [`Bearer ${'k'.repeat(200)}`], 'k'.repeat(200)],
    ['all visible ASCII', ['Bearer !"#$%&\'()*+,-./0:;<=>?@[\\]^_`{|}~'], '!"#$%&\'()*+,-./0:;<=>?@[\\]^_`{|}~'],
    ['none', [], undefined],
    ['empty', [''], undefined],
    ['Bearer alone', ['Bearer'], undefined],
    ['Bearer and a blank', ['Bearer '], undefined],
    ['two spaces', ['Bearer  k'], undefined],
    ['a tab', ['Bearer\tk'], undefined],
    ['a space and a tab', ['Bearer \tk'], undefined],
    ['no space', ['Bearerk'], undefined],
    ['Basic', ['Basic k'], undefined],
    ['the key alone', ['k'], undefined],
    ['two words', ['Bearer k k'], undefined],
    ['two joined by a proxy', ['Bearer k, Bearer k'], undefined],
    ['two headers', ['Bearer k', 'Bearer j'], undefined],
    ['two equal headers', ['Bearer k', 'Bearer k'], undefined],
    ['a second, empty header', ['Bearer k', ''], undefined],
    ['201 characters', [`Bearer ${'k'.repeat(201)}`], undefined],
    ['8 KB', [`Bearer ${'k'.repeat(8192)}`], undefined],
    ['NUL inside', ['Bearer k\0'], undefined],
    ['NUL as the separator', ['Bearer\0k'], undefined],
    ['another blank of Unicode', ['Bearer\u00a0k'], undefined],
    ['a line feed at the end', ['Bearer k\n'], undefined],
    ['non-ASCII', ['Bearer ké'], undefined],
    ['DEL', ['Bearer k\x7f'], undefined],
    ['a scheme that starts so', ['Bearerx k'], undefined],
  ])('%s', (_name, values, expected) => expect(parse(...values)).toBe(expected));

  test('ignores other headers', () => {
    expect(
      bearerKey([
        ['proxy-authorization', 'Bearer x'],
        ['x-api-key', 'x'],
        ['authorization', 'Bearer k'],
        ['cookie', 'a=b'],
      ]),
    ).toBe('k');
    expect(bearerKey([['x-api-key', 'k']])).toBeUndefined();
  });
});
