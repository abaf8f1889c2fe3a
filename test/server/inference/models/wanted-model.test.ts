/** The model that a body names, read without parsing the rest. JSON.parse is the judge. */
import { readWantedModel } from '../../../../server/inference/models/wanted-model';

const read = (text: string) => readWantedModel(Buffer.from(text));

test.each([
  '{"model":"a"}',
  ' { "stream" : true , "model" : "a" } ',
  '{"model":"a","model":"b","stream":true,"stream":false}',
  '{"messages":[{"model":"x","stream":true,"content":"\\"model\\": \\"y\\", {["}],"model":"a"}',
  '{"text":"ends with a backslash \\\\","model":"a\\u0062 \\"c\\" ü 😀"}',
  '{"a":{"b":[1,2,{"model":"x"}]},"model":"org/name:Q4_K_M","stream":true}',
  '{"model":null,"stream":null}',
  '{"model":"","stream":"true"}',
  '{"key":"model","value":"stream","stream":1}',
  '{}',
  `{"text":${JSON.stringify('\\"{[model'.repeat(300_000))},"numbers":[${'1,'.repeat(600_000)}1],"stream":true,"model":"late"}`,
])('of %.60s', async (text) => {
  const { model, stream } = JSON.parse(text) as { model?: string | null; stream?: unknown };
  expect(await read(text)).toEqual({ model: (model ?? '') === '' ? undefined : model, isStream: stream === true });
});

test.each([
  ['{"model":5}', 'invalid_type'],
  ['{"model":["a"]}', 'invalid_type'],
  ['{"model":"a', 'invalid_json'],
  ['{"stream":true', 'invalid_json'],
  ['', 'invalid_json'],
])('refuses %s', async (text, code) => {
  await expect(read(text)).rejects.toMatchObject({ code });
});

test('a body of invalid JSON that names a model is left to the model', async () => {
  expect(await read('{"model":"a"}}}}')).toEqual({ model: 'a', isStream: false });
});
