import { describeModel } from '../../ts';
import { readDraftModel } from '../../ts/draft-model';
import { type Model, readModel } from '../../ts/model/model';

const DRAFT = { model: 'demo', path: 'demo', quantization: 'int8' } as const;
let demo: Model;
beforeAll(async () => {
  demo = await readModel('demo');
});
afterAll(() => demo.text.close());

/** The embedded model with another vocabulary. */
function withVocabulary(change: Partial<Model['text']['traits']['vocabulary']>): Pick<Model, 'config' | 'text'> {
  const { traits } = demo.text;
  const text = { ...demo.text, traits: { ...traits, vocabulary: { ...traits.vocabulary, ...change } } };
  return { config: demo.config, text };
}

test('reads a model with the same vocabulary', async () => {
  const draft = await readDraftModel(DRAFT, demo);
  expect(draft).toMatchObject({ quantization: 'int8', files: demo.checkpoint.files, spec: demo.config.spec });
});

test('names the first token that differs', async () => {
  const bytes = demo.text.traits.vocabulary.bytes.slice();
  const { offsets } = demo.text.traits.vocabulary;
  bytes[offsets[300]] ^= 1;
  await expect(readDraftModel(DRAFT, withVocabulary({ bytes }))).rejects.toMatchObject({
    code: 'invalid_argument',
    message: expect.stringContaining('speculative.model: expected the vocabulary of the model, in which token 300 is'),
  });
});

test('refuses another number of tokens', async () => {
  const numTokens = demo.text.traits.vocabulary.numTokens - 1;
  await expect(readDraftModel(DRAFT, withVocabulary({ numTokens }))).rejects.toMatchObject({
    code: 'invalid_argument',
    message: `speculative.model: expected the vocabulary of the model, ${numTokens} tokens, got one of ${numTokens + 1} tokens`,
  });
});

test('the description of a model counts the memory of its draft model', async () => {
  const alone = await describeModel('demo');
  const speculative = { model: 'demo', numSpeculativeTokens: 2, quantization: 'int8' } as const;
  const both = await describeModel('demo', { speculative });
  expect(both.sequenceBytes).toBe(2 * alone.sequenceBytes);
  expect(both.weightBytes).toBeGreaterThan(alone.weightBytes);
  expect(both.weightBytes).toBeLessThan(2 * alone.weightBytes);
});
