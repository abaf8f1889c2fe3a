import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Tokenizer } from '../../../ts/text/tokenizer';
import { fake } from '../../fakes/fake-addon';
import { buildVocabulary } from '../../../ts/text/vocabulary';
import { tinyModel, tinyTokenizer } from '../../fakes/tiny-model';

const LONG = 'long text '.repeat(30_000);

let tokenizer: Tokenizer;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
  tokenizer = await Tokenizer.load(tinyModel(), new Set());
});
beforeEach(() => fake.reset());

test('reports the memory of a long text to V8 and trims the allocator after its collection', async () => {
  const { length } = await tokenizer.encode(LONG, false);
  expect(length).toBe(LONG.length);
  setFlagsFromString('--expose-gc');
  const collectGarbage = runInNewContext('gc') as () => void;
  await until(() => {
    collectGarbage();
    return fake.memory.includes('trim');
  });
  const held = fake.memory[0] as number;
  expect(held).toBeGreaterThan(length);
  expect(fake.memory).toEqual([held, -held, 'trim']);
});

test('reports nothing for short texts', async () => {
  await tokenizer.encode('short', false);
  await new Promise((resolve) => setImmediate(resolve));
  expect(fake.memory).toEqual([]);
});

test('tokenizes two long texts at a time and skips a waiting one whose caller aborts', async () => {
  const caller = new AbortController();
  const first = [tokenizer.encode(LONG, false), tokenizer.encode(LONG, false)];
  const left = tokenizer.encode(LONG, false, caller.signal);
  const last = tokenizer.encode(LONG, false);
  caller.abort('gone');
  await expect(left).rejects.toMatchObject({ code: 'aborted' });
  for (const ids of await Promise.all([...first, last])) expect(ids).toHaveLength(LONG.length);
});

test.each<[object, number]>([
  [{}, '<|endoftext|>'.length],
  [{ unk_token: '!' }, Infinity],
  [{ unk_id: 0 }, Infinity],
  [{ unk_token: '!', byte_fallback: true }, '<|endoftext|>'.length],
])('computes the maximum bytes per token with %j in the model', (change, expected) => {
  const json = tinyTokenizer() as unknown as Parameters<typeof buildVocabulary>[0];
  expect(buildVocabulary({ ...json, model: { ...json.model, ...change } }, new Set()).maxTokenBytes).toBe(expected);
});

async function until(isSo: () => boolean): Promise<void> {
  while (!isSo()) await new Promise((resolve) => setTimeout(resolve, 50));
}
