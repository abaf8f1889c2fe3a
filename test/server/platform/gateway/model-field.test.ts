/** The search for `model` in bodies, whole and in pieces of every size. */
import type { ApiError } from '../../../../server/base/errors';
import { ModelFieldReader, missing } from '../../../../server/platform/gateway/model-field';

function find(body: string, pieceBytes = Infinity): string {
  const bytes = Buffer.from(body);
  const reader = new ModelFieldReader();
  try {
    for (let at = 0; at < bytes.length; at += pieceBytes) {
      const field = reader.take(bytes.subarray(at, at + pieceBytes));
      if (field === undefined) continue;
      expect(JSON.parse(bytes.subarray(field.start, field.end).toString())).toBe(field.value);
      return field.value;
    }
    throw missing();
  } catch (error) {
    return (error as ApiError).code;
  }
}

const LONG = 'x'.repeat(3_000);

test.each<[string, string]>([
  ['{"model":"chat"}', 'chat'],
  ['\ufeff { "stream" : true ,\n\t"model" : "chat" , "n": 1 }', 'chat'],
  ['{"messages":[{"role":"user","content":"\\"model\\":\\"evil\\" \\\\"}],"model":"chat"}', 'chat'],
  ['{"a":"\\\\\\"","b":{"model":"inner","c":[{"model":1}]},"model":"chat"}', 'chat'],
  ['{"prompt":[1,2,3],"a":"model","model":"chat"}', 'chat'],
  ['{"mod\\u0065l":"ch\\u0061t"}', 'chat'],
  ['{"model":"团队/模型"}', '团队/模型'],
  ['{"model":"a\\/b"}', 'a/b'],
  [`{"text":"${LONG}\\\\","model":"chat"}`, 'chat'],
  [`{"${LONG}":1,"model":"chat"}`, 'chat'],
  ['{"model":null}', 'invalid_type'],
  ['{"model":["chat"]}', 'invalid_type'],
  ['{"model":{"model":"chat"}}', 'invalid_type'],
  ['{"model":7}', 'invalid_type'],
  ['{"model":}', 'invalid_type'],
  ['{}', 'missing_required_parameter'],
  ['{"a":{"model":"chat"}}', 'missing_required_parameter'],
  ['{"a":"model"}', 'missing_required_parameter'],
  ['{"model":"chat', 'missing_required_parameter'],
  ['', 'missing_required_parameter'],
  ['["model","chat"]', 'invalid_json'],
  ['"model"', 'invalid_json'],
  ['model=chat', 'invalid_json'],
  ['--boundary\r\nContent-Disposition: form-data; name="model"\r\n\r\nchat', 'invalid_json'],
])('%.100s', (body, expected) => {
  for (const pieceBytes of [Infinity, 1, 2, 3, 7, 64]) expect(find(body, pieceBytes)).toBe(expected);
});

test.each([
  '{"model":"a","model":"b"}',
  '{"model":"a","x":[{"model":1}],"mod\\u0065l":1}',
  '{"model":"a","MODEL":"b"}',
  '{"Model":"a","model":"b"}',
  '{"MODEL":"a"}',
])('a server could read another model: %s', (body) => {
  for (const pieceBytes of [Infinity, 1, 5]) {
    const bytes = Buffer.from(body);
    const reader = new ModelFieldReader();
    const readAll = (): void => {
      for (let at = 0; at < bytes.length; at += pieceBytes) reader.take(bytes.subarray(at, at + pieceBytes));
    };
    expect(readAll).toThrow('model: expected one field');
  }
});

test('what follows the field may hold other models', () => {
  const reader = new ModelFieldReader();
  expect(reader.take(Buffer.from('{"model":"a",'))?.value).toBe('a');
  expect(reader.take(Buffer.from('"x":{"model":"b"},"y":"model","n":[1]}\n'))?.value).toBe('a');
  expect(() => reader.take(Buffer.from('{"model":"b"}'))).toThrow('not valid JSON');
});

test('a name longer than any deployment has is refused at once, and not cut', () => {
  const body = `{"model":"${'é'.repeat(513)}`;
  for (const pieceBytes of [Infinity, 7]) expect(find(body, pieceBytes)).toBe('model_not_found');
  expect(find(`{"model":"${'é'.repeat(512)}"}`)).toBe('é'.repeat(512));
});

test('agrees with JSON.parse for random objects', () => {
  let seed = 42;
  const random = (n: number) => (seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648) % n;
  const text = () =>
    Array.from({ length: random(8) }, () => ['"', '\\', 'model', '{', '}', ',', ':', 'é'][random(8)]).join('');
  const value = (depth: number): unknown => {
    switch (random(depth > 3 ? 4 : 6)) {
      case 0:
        return text();
      case 1:
        return random(1_000) / 8;
      case 2:
        return null;
      case 3:
        return true;
      case 4:
        return Array.from({ length: random(4) }, () => value(depth + 1));
      default:
        return Object.fromEntries(
          [...Array(random(4))].map((_, i) => [random(2) === 0 ? 'model' : `${text()}${i}`, value(depth + 1)]),
        );
    }
  };
  for (let round = 0; round < 500; round++) {
    const body = { [`a${text()}`]: value(0), [`b${text()}`]: value(0), model: `m${text()}`, c: value(0) };
    expect(find(JSON.stringify(body, null, random(3)), 1 + random(20))).toBe(body.model);
  }
});
