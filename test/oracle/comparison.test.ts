import path from 'node:path';

import { Comparison, F32_TOLERANCE, listCases } from './golden';
import type { Answer } from './golden';

const [{ golden }] = listCases(path.join(__dirname, 'fixtures', 'qwen2-f32'));
const prompt = golden.prompts[3];
const perfect = (): Answer => ({
  tokenIds: [...prompt.greedyTokenIds],
  topLogprobs: prompt.topLogprobs.map((top) => top.map(([id, value]) => [id, value])),
});

function failuresOf(answer: Answer, changed = prompt): string[] {
  const comparison = new Comparison(golden, F32_TOLERANCE);
  comparison.addPrompt(changed, answer);
  return comparison.finish().failures;
}

describe('a comparison with a golden case', () => {
  test('accepts the golden itself', () => {
    const comparison = new Comparison(golden, F32_TOLERANCE);
    comparison.addPrompt(prompt, perfect());
    comparison.addPromptLogprobs(golden.promptLogprobs.logprobs);
    expect(comparison.finish().failures).toEqual([]);
    expect([comparison.worst, comparison.numEqualTokens, comparison.numTokens]).toEqual([0, 16, 16]);
  });

  test('refuses a log-probability outside of the tolerance, NaN included', () => {
    for (const wrong of [prompt.topLogprobs[7][2][1] + 0.002, NaN]) {
      const answer = perfect();
      answer.topLogprobs[7][2][1] = wrong;
      expect(failuresOf(answer)[0]).toMatch(/step 7, token \d+: off by/);
    }
  });

  test('refuses a different token unless the golden is near a tie', () => {
    const answer = perfect();
    answer.tokenIds[5]++;
    expect(failuresOf(answer, { ...prompt, margins: prompt.margins.map(() => 0.5) })[0]).toMatch(
      /step 5: token \d+ instead of \d+, margin 0.5/,
    );
    expect(failuresOf(answer, { ...prompt, margins: prompt.margins.map(() => 0.0001) })).toEqual([]);
  });

  test('refuses a token that is missing from the most likely ones, unless it ties with the last', () => {
    const answer = perfect();
    answer.topLogprobs[0] = answer.topLogprobs[0].slice(1);
    expect(failuresOf(answer)[0]).toMatch(/step 0, token/);
    const tied = perfect();
    const last = tied.topLogprobs[0].length - 1;
    tied.topLogprobs[0][last] = [317, tied.topLogprobs[0][last][1]];
    expect(failuresOf(tied)).toEqual([]);
  });

  test('refuses missing tokens and missing prompt log-probabilities', () => {
    expect(failuresOf({ tokenIds: [], topLogprobs: [] })[0]).toMatch(/0 tokens instead of 16/);
    const comparison = new Comparison(golden, F32_TOLERANCE);
    comparison.addPromptLogprobs([]);
    expect(comparison.failures[0]).toMatch(/0 prompt log-probabilities instead of 64/);
  });
});
