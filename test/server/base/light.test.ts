import { isLight, isLightReply } from '../../../server/base/json/light';

const TOKEN = { token: 'a', logprob: -1, bytes: [97] };
const replyOf = (numTokens: number) =>
  Buffer.from(
    JSON.stringify({
      choices: [
        {
          logprobs: {
            content: Array.from({ length: numTokens }, () => ({ ...TOKEN, top_logprobs: Array(20).fill(TOKEN) })),
          },
        },
      ],
    }),
  );

test('a response of 4,096 tokens with 20 log-probabilities each is read', () => {
  const reply = replyOf(4096);
  expect(isLightReply(reply)).toBe(true);
  expect(isLightReply(reply.toString())).toBe(true);
  expect(isLight(reply)).toBe(false);
});

test.each([
  ['lists', '['.repeat(300) + ']'.repeat(300) + ' '.repeat(4096)],
  ['fields', `{${'"a":1,'.repeat(500_000)}"a":1}`],
])('a text with too many %s is not read', (_, text) => {
  expect(isLight(Buffer.from(text))).toBe(false);
  expect(isLightReply(text)).toBe(false);
});
