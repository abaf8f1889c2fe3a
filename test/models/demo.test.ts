import { type CapstanError, Engine, type GenerationResult } from '../../ts/index';

const QUESTIONS = [
  'Hello!',
  'What is Capstan?',
  'How do I start the server?',
  'What is 7 + 5?',
  'Count from 1 to 20.',
  'Repeat after me: blue whale',
  'Write a poem about the sea.',
  'Who are you?',
];

/** Returns 64 chats of mixed lengths, some with a long system prompt. */
function mixedChats(): { messages: { role: 'system' | 'user'; content: string }[]; maxTokens: number }[] {
  return Array.from({ length: 64 }, (_, i) => ({
    messages: [
      ...(i % 4 === 0
        ? [
            {
              role: 'system' as const,
              content: `Note ${i}. ${'The sky was grey over the harbour that day. '.repeat(5 + (i % 16))}`,
            },
          ]
        : []),
      { role: 'user' as const, content: `${QUESTIONS[i % QUESTIONS.length]}${' '.repeat(i % 3)}` },
    ],
    maxTokens: 5 + ((i * 7) % 60),
  }));
}

const tokensOf = (result: GenerationResult) => result.choices[0]!.tokenIds;

describe('the embedded model', () => {
  let engine: Engine;
  beforeAll(async () => {
    engine = await Engine.load('demo');
  });
  afterAll(async () => {
    await engine.close();
  });

  test('generates the same tokens for 64 concurrent chats as for each alone', async () => {
    const chats = mixedChats();
    const solo: number[][] = [];
    for (const { messages, maxTokens } of chats)
      solo.push(tokensOf(await engine.chat(messages, { temperature: 0, maxTokens }, { cacheSalt: 'solo' }).result()));
    const together = await Promise.all(
      chats.map(({ messages, maxTokens }) => engine.chat(messages, { temperature: 0, maxTokens }).result()),
    );
    expect(together.map(tokensOf)).toEqual(solo);
    const { numRunning, numFreeBlocks, numCachedBlocks, numBlocks } = engine.stats();
    expect([numRunning, numFreeBlocks + numCachedBlocks]).toEqual([0, numBlocks]);
  });

  test('a short request finishes before a long one that started earlier', async () => {
    const ask = (maxTokens: number) =>
      engine.chat([{ role: 'user', content: 'Count from 1 to 20.' }], { maxTokens, ignoreEos: true });
    // Nearly the whole context, so that it still runs on a busy machine when the short one has finished.
    const long = ask(1900);
    const outcome = long.result().catch((error: CapstanError) => error.code);
    const short = await ask(10).result();
    long.abort();
    expect(short.usage.completionTokens).toBe(10);
    expect(await outcome).toBe('aborted');
  });

  test('serves a long prefix from the cache, with the same text', async () => {
    const system = `The code of the archive is 4821. ${'Rain fell on the roofs, and the ferry was late again. '.repeat(80)}`;
    const ask = () =>
      engine
        .chat(
          [
            { role: 'system', content: system },
            { role: 'user', content: 'What is the code of the archive?' },
          ],
          { temperature: 0, maxTokens: 24 },
        )
        .result();
    const cold = await ask();
    const cached = await ask();
    expect(cold.usage.promptTokens).toBeGreaterThan(1000);
    expect(cold.usage.cachedTokens).toBe(0);
    // All full blocks except the one with the last token.
    expect(cached.usage.cachedTokens).toBe(
      Math.floor((cold.usage.promptTokens - 1) / engine.info.blockSize) * engine.info.blockSize,
    );
    expect(tokensOf(cached)).toEqual(tokensOf(cold));
    expect(cached.choices[0]!.text).toBe(cold.choices[0]!.text);
  });

  test('a seed gives the same tokens beside other requests', async () => {
    const draw = () =>
      engine
        .chat([{ role: 'user', content: 'Hello!' }], { temperature: 1.2, seed: 5, maxTokens: 20, ignoreEos: true })
        .result();
    const alone = tokensOf(await draw());
    const noise = Promise.all(
      [1, 2, 3].map(() => engine.chat([{ role: 'user', content: 'Hi' }], { temperature: 1, maxTokens: 40 }).result()),
    );
    expect(tokensOf(await draw())).toEqual(alone);
    await noise;
  });
});
