import { CapstanError } from '../../ts/errors';
import { resolveEngineOptions } from '../../ts/options';
import { draftChoice, resolveSpeculation, type SpeculativeOptions, usesMtpHead } from '../../ts/speculation';

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
    fromGrammar: false,
  }),
);

test('proposes what a grammar forces', () => {
  const speculative = { method: 'grammar', numSpeculativeTokens: 3 } as const;
  expect(resolveEngineOptions({ speculative }).speculative).toMatchObject({ fromGrammar: true });
});

test('names the draft model, which a model implies', () => {
  const speculative = { model: 'org/small', numSpeculativeTokens: 3 };
  expect(resolveEngineOptions({ speculative }).speculative).toMatchObject({ numSpeculativeTokens: 3 });
  expect(draftChoice({ speculative })).toEqual({ model: 'org/small', quantization: 'none' });
  const quantized = { ...speculative, method: 'draft_model', quantization: 'int8' } as const;
  expect(draftChoice({ speculative: quantized })).toEqual({ model: 'org/small', quantization: 'int8' });
  expect([draftChoice({}), draftChoice({ speculative: { numSpeculativeTokens: 3 } })]).toEqual([undefined, undefined]);
});

test('takes the number of drafts of an MTP head alone', () => {
  const speculative = { method: 'mtp', numSpeculativeTokens: 3 } as const;
  expect(resolveEngineOptions({ speculative }).speculative).toMatchObject({ numSpeculativeTokens: 3 });
  expect(usesMtpHead({ speculative })).toBe(true);
  expect([usesMtpHead({}), usesMtpHead({ speculative: { numSpeculativeTokens: 3 } })]).toEqual([false, false]);
});

test.each<[unknown, string]>([
  [
    { method: 'mtp', numSpeculativeTokens: 2, promptLookupMin: 2 },
    "speculative.promptLookupMin: expected no value with the method 'mtp', got 2",
  ],
  ['ngram', 'speculative: expected an object'],
  [{}, 'speculative.numSpeculativeTokens: expected an integer from 1 to 64, got undefined'],
  [{ numSpeculativeTokens: 65 }, 'speculative.numSpeculativeTokens: expected an integer from 1 to 64, got 65'],
  [{ numSpeculativeTokens: 2.5 }, 'speculative.numSpeculativeTokens: expected an integer from 1 to 64, got 2.5'],
  [{ numSpeculativeTokens: 2, promptLookupMax: 0 }, 'speculative.promptLookupMax: expected an integer from 1 to 64'],
  [
    { numSpeculativeTokens: 2, promptLookupMax: 3, promptLookupMin: 4 },
    'speculative.promptLookupMin: expected an integer from 1 to 3, got 4',
  ],
  [
    { numSpeculativeTokens: 2, method: 7 },
    "speculative.method: expected 'ngram', 'grammar', 'draft_model' or 'mtp', got 7",
  ],
  [
    { numSpeculativeTokens: 2, method: 'eagle' },
    "speculative method 'eagle' is not supported; expected 'ngram', 'grammar', 'draft_model' or 'mtp'",
  ],
  [{ numSpeculativeTokens: 2, method: 'draft_model' }, 'speculative.model: expected'],
  [{ numSpeculativeTokens: 2, model: 7 }, 'speculative.model: expected'],
  [
    { numSpeculativeTokens: 2, method: 'mtp', model: '/models/small' },
    "speculative.model: expected no value with the method 'mtp', got",
  ],
  [
    { numSpeculativeTokens: 2, model: '/models/small', promptLookupMax: 2 },
    "speculative.promptLookupMax: expected no value with the method 'draft_model', got 2",
  ],
  [
    { numSpeculativeTokens: 2, model: '/models/small', quantization: 'fp8' },
    'speculative.quantization: expected one of none, int8, int4, got',
  ],
  [{ num_speculative_tokens: 2 }, 'speculative.num_speculative_tokens: expected one of the options method'],
])('refuses %j', (options, message) => {
  const resolve = (): unknown => resolveSpeculation(options as SpeculativeOptions);
  expect(resolve).toThrow(CapstanError);
  expect(resolve).toThrow(message);
});
