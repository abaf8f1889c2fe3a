import { resolveSampling, type SamplingParams } from '../../ts/sampling';

const limits = { vocabSize: 100, maxModelLen: 64, numPromptTokens: 10 };

function resolve(params: SamplingParams, defaults = {}): ReturnType<typeof resolveSampling>['sampling'] {
  return resolveSampling(params, defaults, limits).sampling;
}

test('fields that are left out get their defaults', () => {
  expect(resolve({})).toEqual({
    temperature: 1,
    topK: 0,
    topP: 1,
    minP: 0,
    presencePenalty: 0,
    frequencyPenalty: 0,
    repetitionPenalty: 1,
    seed: null,
    maxTokens: 54,
    minTokens: 0,
    ignoreEos: false,
    stopTokenIds: new Int32Array(0),
    stop: [],
    includeStopInOutput: false,
    skipSpecialTokens: true,
    logitBiasIds: new Int32Array(0),
    logitBiasValues: new Float32Array(0),
    allowedTokenIds: null,
    logprobs: -1,
    promptLogprobs: -1,
    badWords: [],
    thinkingBudget: null,
  });
});

test('passes every field', () => {
  expect(
    resolve({
      temperature: 0.5,
      topK: -1,
      topP: 0.9,
      minP: 0.1,
      presencePenalty: -2,
      frequencyPenalty: 2,
      repetitionPenalty: 1.2,
      seed: -5n,
      maxTokens: 54,
      minTokens: 3,
      ignoreEos: true,
      stopTokenIds: [7],
      stop: 'x',
      includeStopInOutput: true,
      skipSpecialTokens: false,
      logitBias: { 3: -100, 99: 1.5 },
      allowedTokenIds: new Int32Array([1, 2]),
      logprobs: 0,
      promptLogprobs: 5,
    }),
  ).toEqual({
    temperature: 0.5,
    topK: 0,
    topP: 0.9,
    minP: 0.1,
    presencePenalty: -2,
    frequencyPenalty: 2,
    repetitionPenalty: 1.2,
    seed: -5n,
    maxTokens: 54,
    minTokens: 3,
    ignoreEos: true,
    stopTokenIds: new Int32Array([7]),
    stop: ['x'],
    includeStopInOutput: true,
    skipSpecialTokens: false,
    logitBiasIds: new Int32Array([3, 99]),
    logitBiasValues: new Float32Array([-100, 1.5]),
    allowedTokenIds: new Int32Array([1, 2]),
    logprobs: 0,
    promptLogprobs: 5,
    badWords: [],
    thinkingBudget: null,
  });
});

test('the request takes precedence over the model, the model over our defaults', () => {
  expect(resolve({ temperature: 0.2 }, { temperature: 0.7, topP: 0.8 })).toMatchObject({
    temperature: 0.2,
    topP: 0.8,
    topK: 0,
  });
  expect(resolve({ topK: 0 }, { topK: 20 })).toMatchObject({ topK: 0 });
});

test('raises temperatures just above 0 to the minimum', () => {
  expect(resolve({ temperature: 1e-9 }).temperature).toBe(0.01);
  expect(resolve({ temperature: 0 }).temperature).toBe(0);
});

test('accepts 64-bit seeds and a map of biases', () => {
  expect(resolve({ seed: 2n ** 63n - 1n }).seed).toBe(2n ** 63n - 1n);
  expect(resolve({ seed: 12 }).seed).toBe(12n);
  expect(resolve({ logitBias: new Map([[4, 2]]) }).logitBiasIds).toEqual(new Int32Array([4]));
});

test('clamps numbers outside of the range of 32-bit floats', () => {
  expect(resolve({ topP: 1e-300, repetitionPenalty: 1e-300 })).toMatchObject({ topP: 1e-30, repetitionPenalty: 1e-30 });
  expect(resolve({ temperature: 1e300, repetitionPenalty: 1e300 })).toMatchObject({
    temperature: 1e30,
    repetitionPenalty: 1e30,
  });
  expect(resolve({ logitBias: { 4: 1e300, 5: -1e300 } }).logitBiasValues).toEqual(new Float32Array([1e30, -1e30]));
});

test.each<[params: Record<string, unknown>, param: string, expected: string, received: string]>([
  [{ temperature: -0.1 }, 'temperature', 'a number of 0 or more', '-0.1'],
  [{ temperature: NaN }, 'temperature', 'a number of 0 or more', 'NaN'],
  [{ temperature: '1' }, 'temperature', 'a number of 0 or more', '"1"'],
  [{ topP: 0 }, 'topP', 'a number above 0 and up to 1', '0'],
  [{ topP: 1.1 }, 'topP', 'a number above 0 and up to 1', '1.1'],
  [{ topK: -2 }, 'topK', 'an integer from -1 to 2147483647', '-2'],
  [{ topK: 1.5 }, 'topK', 'an integer from -1 to 2147483647', '1.5'],
  [{ minP: 2 }, 'minP', 'a number from 0 to 1', '2'],
  [{ presencePenalty: 3 }, 'presencePenalty', 'a number from -2 to 2', '3'],
  [{ frequencyPenalty: -3 }, 'frequencyPenalty', 'a number from -2 to 2', '-3'],
  [{ repetitionPenalty: 0 }, 'repetitionPenalty', 'a number above 0', '0'],
  [{ repetitionPenalty: Infinity }, 'repetitionPenalty', 'a number above 0', 'Infinity'],
  [{ seed: 1.5 }, 'seed', 'an integer', '1.5'],
  [{ seed: 2 ** 60 }, 'seed', 'a bigint for an integer this large', '1152921504606847000'],
  [{ seed: 2n ** 63n }, 'seed', 'a 64-bit integer', '9223372036854775808'],
  [{ maxTokens: -1 }, 'maxTokens', 'an integer of 0 or more', '-1'],
  [{ minTokens: 6, maxTokens: 5 }, 'minTokens', 'an integer from 0 to 5', '6'],
  [{ stop: '' }, 'stop[0]', 'a string of at least one character', '""'],
  [{ stop: ['a', 5] }, 'stop[1]', 'a string of at least one character', '5'],
  [{ stop: 5 }, 'stop', 'a string or an array of strings', '5'],
  [{ stopTokenIds: [100] }, 'stopTokenIds[0]', 'a token id from 0 to 99', '100'],
  [{ stopTokenIds: 5 }, 'stopTokenIds', 'an array of token ids', '5'],
  [{ logitBias: { x: 1 } }, 'logitBias', 'token ids as keys', '"x"'],
  [{ logitBias: { 100: 1 } }, 'logitBias[0]', 'a token id from 0 to 99', '100'],
  [{ logitBias: { 1: 'a' } }, 'logitBias[1]', 'a number', '"a"'],
  [{ logitBias: 5 }, 'logitBias', 'an object', '5'],
  [{ allowedTokenIds: [] }, 'allowedTokenIds', 'at least one token id', 'an array of 0'],
  [{ logprobs: 101 }, 'logprobs', 'an integer from 0 to 100', '101'],
  [{ promptLogprobs: -1 }, 'promptLogprobs', 'an integer from 0 to 100', '-1'],
  [{ ignoreEos: 1 }, 'ignoreEos', 'true or false', '1'],
  [{ n: 0 }, 'n', 'an integer from 1 to 128', '0'],
  [{ n: 2, temperature: 0 }, 'n', '1 at temperature 0, where all choices are equal', '2'],
])('refuses %j and reports the expected and received value', (params, param, expected, received) => {
  expect(() => resolve(params)).toThrow(
    expect.objectContaining({
      code: 'invalid_argument',
      param,
      expected,
      received,
      message: `${param}: expected ${expected}, got ${received}`,
    }) as Error,
  );
});

test('bounds the length of a value in a message', () => {
  expect(() => resolve({ temperature: 'x'.repeat(1e6) as never })).toThrow(
    expect.objectContaining({ message: expect.stringMatching(/^.{1,200}$/) as string }) as Error,
  );
});
