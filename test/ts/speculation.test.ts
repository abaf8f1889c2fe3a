import { CapstanError } from '../../ts/errors';
import { resolveEngineOptions } from '../../ts/options';
import { resolveSpeculation, type SpeculativeOptions } from '../../ts/speculation';

test('is off by default', () => expect(resolveEngineOptions({}).speculative).toBeNull());

test.each<[SpeculativeOptions, number, number]>([
  [{ numSpeculativeTokens: 3 }, 5, 5],
  [{ method: 'ngram', numSpeculativeTokens: 3, promptLookupMax: 4 }, 4, 4],
  [{ numSpeculativeTokens: 3, promptLookupMin: 2 }, 2, 2],
  [{ numSpeculativeTokens: 3, promptLookupMax: 6, promptLookupMin: 2 }, 6, 2],
])('%j looks up %d to %d tokens', (speculative, promptLookupMax, promptLookupMin) =>
  expect(resolveEngineOptions({ speculative }).speculative).toEqual({
    numSpeculativeTokens: 3,
    promptLookupMax,
    promptLookupMin,
  }),
);

test.each<[unknown, string]>([
  ['ngram', 'speculative: expected an object'],
  [{}, 'speculative.numSpeculativeTokens: expected an integer from 1 to 64, got undefined'],
  [{ numSpeculativeTokens: 65 }, 'speculative.numSpeculativeTokens: expected an integer from 1 to 64, got 65'],
  [{ numSpeculativeTokens: 2.5 }, 'speculative.numSpeculativeTokens: expected an integer from 1 to 64, got 2.5'],
  [{ numSpeculativeTokens: 2, promptLookupMax: 0 }, 'speculative.promptLookupMax: expected an integer from 1 to 64'],
  [
    { numSpeculativeTokens: 2, promptLookupMax: 3, promptLookupMin: 4 },
    'speculative.promptLookupMin: expected an integer from 1 to 3, got 4',
  ],
  [{ numSpeculativeTokens: 2, method: 7 }, "speculative.method: expected 'ngram', got 7"],
  [{ numSpeculativeTokens: 2, method: 'eagle' }, "speculative method 'eagle' is not supported yet; expected 'ngram'"],
  [
    { numSpeculativeTokens: 2, model: '/models/small' },
    "speculative method 'draft_model' is not supported yet; expected 'ngram'",
  ],
  [{ num_speculative_tokens: 2 }, 'speculative.num_speculative_tokens: expected one of the options method'],
])('refuses %j', (options, message) => {
  const resolve = (): unknown => resolveSpeculation(options as SpeculativeOptions);
  expect(resolve).toThrow(CapstanError);
  expect(resolve).toThrow(message);
});
