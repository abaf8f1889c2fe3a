/** Bad words, thinking budgets, scoring and stopping on a real model. */
import { loadAddon } from '../../ts/addon';
import type { NativeEngine, NativeEvent, NativeFinish, NativeGrammarSource, NativeSampling, NativeTokenLogprob } from '../../ts/addon-types';
import { loadNative } from '../../ts/load';
import type { Model } from '../../ts/model/model';
import { resolveSampling } from '../../ts/sampling';
import { charClass, literal, repeat, sequence, until } from '../../ts/text/grammar';

interface Answer {
  text: string;
  tokenIds: number[];
  logprobs: NativeTokenLogprob[];
  promptLogprobs: (NativeTokenLogprob | null)[];
  finish: NativeFinish;
}

let native: NativeEngine;
let model: Model;
let prompt: Int32Array;
let onEvents: (events: NativeEvent[]) => void = () => undefined;

beforeAll(async () => {
  ({ native, model } = await loadNative(loadAddon, 'demo', {}, undefined, (events) => onEvents(events)));
  prompt = await model.tokenizer.encode('Once upon a time there was a small', true);
});

afterAll(() => native.close());

const idsOf = (text: string): Promise<Int32Array> => model.tokenizer.encode(text, false);

/** @param onEvent Called with the request's id and what it has said so far. */
async function run(change: Partial<NativeSampling>, { source, promptTokenIds = prompt, onEvent }: {
  source?: NativeGrammarSource; promptTokenIds?: Int32Array; onEvent?: (id: number, tokenIds: number[]) => void;
} = {}): Promise<Answer> {
  const { sampling } = resolveSampling({ temperature: 0, maxTokens: 24, ignoreEos: true }, {}, { vocabSize: model.config.spec.vocabSize, maxModelLen: native.info.maxModelLen, numPromptTokens: promptTokenIds.length });
  const grammar = source === undefined ? null : await native.compileGrammar(source);
  return new Promise((resolve) => {
    const answer: Omit<Answer, 'finish'> = { text: '', tokenIds: [], logprobs: [], promptLogprobs: [] };
    onEvents = (events) => events.forEach((event) => {
      answer.text += event.textDelta;
      answer.tokenIds.push(...event.tokenIds);
      answer.logprobs.push(...event.logprobs ?? []);
      answer.promptLogprobs.push(...event.promptLogprobs ?? []);
      if (event.finish !== null) resolve({ ...answer, finish: event.finish });
      else onEvent?.(event.id, answer.tokenIds);
    });
    native.submit({ promptTokenIds, numChoices: 1, sampling: { ...sampling, ...change }, cacheSalt: '', stripLeadingSpace: false, grammar });
  });
}

test('bad words of one token and of several do not come', async () => {
  const free = await run({});
  const [first, second, third] = free.tokenIds;
  const without = await run({ badWords: [Int32Array.of(first)] });
  expect(without.tokenIds).not.toContain(first);
  const { tokenIds } = await run({ badWords: [Int32Array.of(first, second, third)] });
  expect(tokenIds.slice(0, 2)).toEqual([first, second]);
  expect(tokenIds[2]).not.toBe(third);
  expect((await run({ badWords: [Int32Array.of(second, first, third)] })).tokenIds.slice(0, 3)).toEqual([first, second, third]);
});

test('a thought is closed when its budget is used up, and log-probabilities stay the model\'s', async () => {
  const free = await run({});
  const closeIds = await idsOf('</think>');
  for (const budget of [0, 5]) {
    const closed = await run({ logprobs: 0, thinkingBudget: { budget, openIds: await idsOf('<think>'), closeIds, isInside: true } });
    expect(closed.tokenIds.slice(0, budget + closeIds.length)).toEqual([...free.tokenIds.slice(0, budget), ...closeIds]);
    expect(closed.text).toContain('</think>');
    // The same tokens as a prompt: what the model says of each, whoever chose it.
    const scored = await run({ maxTokens: 0, promptLogprobs: 0 }, { promptTokenIds: Int32Array.of(...prompt, ...closed.tokenIds) });
    closed.logprobs.forEach(({ tokenId, logprob }, i) => {
      const entry = scored.promptLogprobs[prompt.length + i];
      expect([i, entry?.tokenId]).toEqual([i, tokenId]);
      expect(Math.abs((entry?.logprob ?? NaN) - logprob)).toBeLessThan(0.02);
    });
    // Forced tokens are far from what the model would say.
    expect(closed.logprobs[budget].logprob).toBeLessThan(-2);
  }
  const open = await run({ thinkingBudget: { budget: 5, openIds: Int32Array.of(), closeIds, isInside: false } });
  expect(open.tokenIds).toEqual(free.tokenIds);
});

test('a thought that is closed moves the grammar on', async () => {
  const answer = sequence(until('</think>'), 'Answer: ', repeat(charClass(['0', '9']), 3, 3));
  const { text, finish } = await run({ thinkingBudget: { budget: 4, openIds: Int32Array.of(), closeIds: await idsOf('</think>'), isInside: true } },
    { source: { kind: 'rules', root: 'root', rules: [{ name: 'root', expr: answer }] } });
  expect(text).toMatch(/^[^]*<\/think>Answer: \d{3}$/);
  expect(finish.reason).toBe('stop');
});

test('special tokens come where a grammar spells them', async () => {
  const special = [...model.tokenizer.vocabulary.ids].filter(([, id]) => model.tokenizer.vocabulary.special[id] !== 0).map(([text, id]) => ({ text, id }));
  const { text, id } = special.find((token) => !model.config.eosTokenIds.includes(token.id)) ?? special[0];
  const source = (isPlain: boolean): NativeGrammarSource => ({ kind: 'rules', root: 'root', rules: [{ name: 'root', expr: sequence('[', literal(text), ']'), isPlain }] });
  // Greatly preferred, so that it comes wherever it may.
  const preferred = { logitBiasIds: Int32Array.of(id), logitBiasValues: Float32Array.of(1000), skipSpecialTokens: false };
  const spelled = await run(preferred, { source: source(false) });
  expect(spelled.text).toBe(`[${text}]`);
  expect(spelled.tokenIds).toContain(id);
  const plain = await run(preferred, { source: source(true) });
  expect(plain.text).toBe(`[${text}]`);
  expect(plain.tokenIds).not.toContain(id);
});

test('a prompt is scored without a completion, also when it is cached', async () => {
  for (let round = 0; round < 2; round++) {
    const { tokenIds, finish, promptLogprobs } = await run({ maxTokens: 0, promptLogprobs: 1 });
    expect([tokenIds, finish.reason, finish.completionTokens, finish.promptTokens]).toEqual([[], 'length', 0, prompt.length]);
    expect(promptLogprobs.map((entry) => entry?.tokenId)).toEqual([undefined, ...prompt.slice(1)]);
  }
  const { numBlocks, numFreeBlocks, numCachedBlocks } = native.stats();
  expect(numFreeBlocks + numCachedBlocks).toBe(numBlocks);
});

test.each(['stop', 'abort'] as const)('%s between steps keeps the usage', async (how) => {
  const { finish, tokenIds } = await run({ maxTokens: 200 }, { onEvent: (id, said) => {
    if (said.length < 3) return;
    if (how === 'stop') native.stop(id, 0);
    else native.abort(id);
  } });
  expect(finish).toMatchObject({ reason: how, stopReason: null, promptTokens: prompt.length, completionTokens: tokenIds.length });
  expect(tokenIds.length).toBeGreaterThanOrEqual(3);
  expect(tokenIds.length).toBeLessThan(200);
});

test.each([
  [{ badWords: [[1]] }, 'badWords'], [{ badWords: undefined }, 'badWords'], [{ badWords: [new Int32Array(0)] }, 'badWords'], [{ badWords: [Int32Array.of(-1)] }, 'badWords'],
  [{ thinkingBudget: 5 }, 'thinkingBudget'], [{ thinkingBudget: { budget: -1, openIds: Int32Array.of(), closeIds: Int32Array.of(1), isInside: true } }, 'thinkingBudget'],
  [{ thinkingBudget: { budget: 1, openIds: Int32Array.of(), closeIds: Int32Array.of(), isInside: true } }, 'thinkingBudget'],
])('%j is refused by name', async (change, name) => {
  await expect(run(change as never)).rejects.toThrow(expect.objectContaining({ code: 'invalid_argument', message: expect.stringContaining(name) as string }));
});
