import { MAX_BAD_WORDS } from '../../../../ts';
import {
  CHAT_COMPLETION_REQUEST,
  COMPLETION_REQUEST,
  DETOKENIZE_REQUEST,
} from '../../../../server/inference/openai/schema';
import { CHAT_NULLS } from '../../../../server/base/json/nulls';
import { validate } from '../../../../server/base/json/validate';

const messages = [{ role: 'user', content: 'hi' }];
const part = { type: 'text', text: 'x' };

describe('lists of token ids', () => {
  // Checking each of these by the schema would take seconds.
  const many = new Array<number>(300_000).fill(7);

  test('are passed through unchanged, at any length', async () => {
    const request = { prompt: [many, [1]], stop_token_ids: many };
    const { prompt, stop_token_ids: stops } = await validate(COMPLETION_REQUEST, request);
    expect([prompt === request.prompt, stops === many]).toEqual([true, true]);
  });

  test.each([
    [
      { prompt: [...many, -1] },
      'prompt: expected items that are strings, token ids of 0 or more, or arrays of token ids, got -1',
    ],
    [{ prompt: [[1], [...many, 'x']] }, 'prompt: expected token ids of 0 or more, got "x"'],
    [
      { prompt: [] },
      'prompt: expected a string, an array of token ids, or an array of strings or of arrays of token ids, got an array of 0',
    ],
    [{ prompt: 'x', stop_token_ids: [1, 2, 3.5] }, 'stop_token_ids: expected token ids of 0 or more, got 3.5'],
    [
      { prompt: 'x', allowed_token_ids: [] },
      'allowed_token_ids: expected an array of at least one token id, got an array of 0',
    ],
  ])('names an invalid token id, %#', async (request, message) => {
    await expect(validate(COMPLETION_REQUEST, request)).rejects.toThrow(message);
  });
});

test.each([
  [
    { messages: new Array(65_537).fill(0) },
    'messages',
    'messages: expected an array of 1 to 65536 items, got an array of 65537',
  ],
  [
    { messages: [{ role: 'user', content: new Array(65_537).fill(part) }] },
    'messages[0].content',
    'messages[0].content: expected a string or an array of text parts, got an array of 65537',
  ],
  [
    { messages: new Array(2_100).fill({ role: 'user', content: new Array(65).fill(part) }) },
    'messages[1984].content',
    'messages[1984].content: expected at most 131072 items in all lists together, got more',
  ],
  [
    { messages, logit_bias: Object.fromEntries(Array.from({ length: 65_537 }, (_, i) => [i, 1])) },
    'logit_bias',
    'logit_bias: expected an object of up to 65536 token ids, each with a number from -100 to 100, got 65537 entries',
  ],
])('refuses a list that is too long before checking its items, %#', async (request, param, message) => {
  await expect(validate(CHAT_COMPLETION_REQUEST, request, CHAT_NULLS)).rejects.toMatchObject({
    code: 'invalid_value',
    param,
    message,
  });
});

test('allows as many bad words as the engine', async () => {
  const request = (count: number) =>
    validate(COMPLETION_REQUEST, { prompt: 'x', bad_words: new Array(count).fill('y') });
  await expect(request(MAX_BAD_WORDS)).resolves.toBeDefined();
  await expect(request(MAX_BAD_WORDS + 1)).rejects.toThrow(
    `bad_words: expected an array of up to ${MAX_BAD_WORDS} strings of at least one character, got an array of ${MAX_BAD_WORDS + 1}`,
  );
});

test('names the expected value for an empty string', async () => {
  await expect(
    validate(CHAT_COMPLETION_REQUEST, { messages: [{ role: 'user', content: 'x' }], stop: [''] }),
  ).rejects.toThrow('stop: expected a string of at least one character, got ""');
});

test('limits the tokens of a detokenize request', async () => {
  await expect(validate(DETOKENIZE_REQUEST, { tokens: new Array(1_048_577).fill(1) })).rejects.toMatchObject({
    param: 'tokens',
  });
});
