import { Engine, type GenerationResult } from '../../ts/index';

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

/** 64 chats of mixed lengths: some short, some behind a long system prompt. */
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

  test('answers 64 chats at once as it answers each alone', async () => {
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

  test('short requests finish before long ones that started earlier', async () => {
    const order: string[] = [];
    const ask = (name: string, maxTokens: number) =>
      engine
        .chat([{ role: 'user', content: 'Count from 1 to 20.' }], { maxTokens, ignoreEos: true })
        .result()
        .then(() => order.push(name));
    await Promise.all([ask('long', 400), ask('short', 10)]);
    expect(order).toEqual(['short', 'long']);
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
    // All full blocks but the one that holds the last token.
    expect(cached.usage.cachedTokens).toBe(
      Math.floor((cold.usage.promptTokens - 1) / engine.info.blockSize) * engine.info.blockSize,
    );
    expect(tokensOf(cached)).toEqual(tokensOf(cold));
    expect(cached.choices[0]!.text).toBe(cold.choices[0]!.text);
  });

  test('the same seed draws the same text, whatever else runs', async () => {
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
