import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { runInNewContext } from 'node:vm';
import { Engine } from '../../ts';
import type { ChatEvent, EngineOptions, GenerateEvent, Generation, SamplingParams } from '../../ts';
import { GrammarCache } from '../../ts/grammar-cache';
import { fake } from '../fakes/fake-addon';
import { TINY_CONFIG, TINY_TEMPLATE, tinyModel, tinyTokenizer } from '../fakes/tiny-model';

const modelDir = tinyModel();
const engines: Engine[] = [];

async function loadEngine(options: EngineOptions = {}, dir = modelDir): Promise<Engine> {
  const engine = await Engine.load(dir, options);
  engines.push(engine);
  return engine;
}

async function collect<E extends ChatEvent>(generation: Generation<E>): Promise<E[]> {
  const events: E[] = [];
  for await (const event of generation) events.push(event);
  return events;
}

function textOf(events: readonly ChatEvent[]): string {
  return events.map((event) => (event.type === 'delta' ? event.textDelta : '')).join('');
}

beforeAll(() => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
});
beforeEach(() => fake.reset());
afterAll(() => Promise.all(engines.map((engine) => engine.close())));

describe('generate', () => {
  test('streams text and ends with reason and usage', async () => {
    fake.answer = () => ({ text: 'Größe 😀' });
    const engine = await loadEngine();
    const generation = engine.generate('Say it');
    await expect(generation.submitted).resolves.toEqual({
      promptTokens: 6,
      promptTokenIds: Int32Array.from(Buffer.from('Say it')),
    });
    const events = await collect(generation);
    expect(textOf(events)).toBe('Größe 😀');
    expect(events.at(-1)).toMatchObject({
      type: 'finish',
      index: 0,
      finishReason: 'stop',
      stopReason: null,
      usage: { promptTokens: 6, completionTokens: 12, totalTokens: 18 },
    });
    const { choices, usage } = await generation.result();
    expect(choices).toMatchObject([
      { index: 0, text: 'Größe 😀', toolCalls: [], finishReason: 'stop', stopReason: null },
    ]);
    expect(choices[0].tokenIds).toHaveLength(12);
    expect(usage.totalTokens).toBe(18);
  });

  test('submits token ids synchronously', async () => {
    const engine = await loadEngine();
    void engine.generate([1, 2, 3]);
    expect([...fake.requests[0].promptTokenIds]).toEqual([1, 2, 3]);
  });

  test('merges deltas for a slow reader', async () => {
    fake.answer = () => ({ text: 'abcdefghij' });
    const engine = await loadEngine();
    const generation = engine.generate('x', { logprobs: 1 });
    await generation.result();
    const events = await collect(generation);
    expect(events).toHaveLength(2);
    expect(events[0]).toMatchObject({ type: 'delta', textDelta: 'abcdefghij' });
    expect((events[0] as { logprobs: unknown[] }).logprobs).toHaveLength(10);
  });

  test('aborts the request when the loop is left', async () => {
    fake.answer = () => ({ text: 'a'.repeat(10_000) });
    const engine = await loadEngine();
    const generation = engine.generate('x');
    for await (const event of generation) if (event.type === 'delta') break;
    expect(fake.aborted).toHaveLength(1);
    await expect(generation.result()).rejects.toMatchObject({ code: 'aborted' });
  });

  test('a signal aborts before the call, while tokenizing and while running', async () => {
    fake.answer = () => ({ text: 'a'.repeat(10_000) });
    const engine = await loadEngine();
    await expect(engine.generate('x', {}, { signal: AbortSignal.abort('why') }).result()).rejects.toMatchObject({
      code: 'aborted',
      cause: 'why',
    });
    const early = new AbortController();
    const tokenizing = engine.generate('x', {}, { signal: early.signal });
    early.abort();
    await expect(tokenizing.result()).rejects.toMatchObject({ code: 'aborted' });
    expect(fake.requests).toHaveLength(0);
    const late = new AbortController();
    const running = engine.generate('x', {}, { signal: late.signal });
    const reading = collect(running);
    await running.submitted;
    late.abort();
    await expect(reading).rejects.toMatchObject({ code: 'aborted' });
    expect(fake.aborted).toHaveLength(1);
  });

  test('an engine error ends the iteration and the result with its code', async () => {
    fake.answer = () => ({ text: 'ab', reason: 'error', errorCode: 'numeric_error' });
    const engine = await loadEngine();
    const generation = engine.generate('x');
    const seen: GenerateEvent[] = [];
    await expect(
      (async () => {
        for await (const event of generation) seen.push(event);
      })(),
    ).rejects.toMatchObject({ code: 'numeric_error', message: 'the fake failed' });
    expect(textOf(seen)).toBe('ab');
    await expect(generation.result()).rejects.toMatchObject({ code: 'numeric_error' });
  });

  test('generates n choices and counts the prompt once', async () => {
    fake.answer = (_prompt, _request, index) => ({ text: `choice ${index}` });
    const engine = await loadEngine();
    const { choices, usage } = await engine.generate('ab', { n: 3, temperature: 1 }).result();
    expect(choices.map((choice) => choice.text)).toEqual(['choice 0', 'choice 1', 'choice 2']);
    expect(usage).toMatchObject({ promptTokens: 2, completionTokens: 24, totalTokens: 26 });
  });

  test('returns log-probabilities of the completion and the prompt', async () => {
    fake.answer = () => ({ text: 'hi' });
    const engine = await loadEngine();
    const { choices, promptLogprobs } = await engine.generate('abc', { logprobs: 2, promptLogprobs: 0 }).result();
    expect(choices[0].logprobs).toMatchObject([
      { tokenId: 104, logprob: -0.5, rank: 1, topLogprobs: [{ tokenId: 104 }, { tokenId: 1 }] },
      { tokenId: 105 },
    ]);
    expect(promptLogprobs).toMatchObject([null, { tokenId: 98 }, { tokenId: 99 }]);
  });

  test('maxTokens defaults to the rest of the context', async () => {
    const engine = await loadEngine({ maxModelLen: 100 });
    await engine.generate('x'.repeat(60)).result();
    expect(fake.requests[0].sampling.maxTokens).toBe(40);
  });

  test('scores a prompt with maxTokens 0, even if it fills the context', async () => {
    const engine = await loadEngine({ maxModelLen: 8 });
    const {
      choices: [choice],
      promptLogprobs,
      promptTokenIds,
      usage,
    } = await engine.generate('abcdefgh', { maxTokens: 0, promptLogprobs: 1 }).result();
    expect(choice).toMatchObject({ text: '', tokenIds: [], finishReason: 'length' });
    expect(promptLogprobs).toHaveLength(8);
    expect([...promptTokenIds]).toEqual([...Buffer.from('abcdefgh')]);
    expect(usage).toMatchObject({ promptTokens: 8, completionTokens: 0 });
    await expect(engine.generate('abcdefghi', { maxTokens: 0 }).result()).rejects.toMatchObject({
      code: 'context_length_exceeded',
    });
  });

  test.each<[SamplingParams, string]>([
    [{}, 'abcdefgh'],
    [{ truncatePrompt: 3 }, 'fgh'],
    [{ truncatePrompt: 3, truncationSide: 'right' }, 'abc'],
    [{ truncatePrompt: 100 }, 'abcdefgh'],
  ])('truncates the prompt: %j', async (sampling, expected) => {
    const engine = await loadEngine();
    const { usage, promptTokenIds } = await engine.generate('abcdefgh', sampling).result();
    expect(Buffer.from(promptTokenIds).toString()).toBe(expected);
    expect(usage.promptTokens).toBe(expected.length);
  });

  test('truncatePrompt -1 leaves space for maxTokens', async () => {
    const engine = await loadEngine({ maxModelLen: 8 });
    await engine.generate(`${'x'.repeat(1_000)}abcdefghijkl`, { truncatePrompt: -1, maxTokens: 3 }).result();
    await engine.generate('abcdefghijkl', { truncatePrompt: -1 }).result();
    expect(
      fake.requests.map(({ promptTokenIds, sampling }) => [Buffer.from(promptTokenIds).toString(), sampling.maxTokens]),
    ).toEqual([
      ['hijkl', 3],
      ['fghijkl', 1],
    ]);
  });

  test('tokenizes bad words, and again with a leading space if the first token differs', async () => {
    const engine = await loadEngine();
    await engine.generate('x', { badWords: ['ab', ' c'] }).result();
    expect(fake.requests[0].sampling.badWords).toEqual([Int32Array.of(97, 98), Int32Array.of(99)]);
    const spaced = tinyTokenizer() as { model: { vocab: Record<string, number>; merges: string[] } };
    Object.assign(spaced.model.vocab, { Ġa: 263, b: 98 });
    spaced.model.merges.push('Ġ a');
    const merging = await loadEngine({}, tinyModel({ 'tokenizer.json': spaced }));
    await merging.generate([1], { badWords: ['ab'] }).result();
    expect(fake.requests[1].sampling.badWords).toEqual([Int32Array.of(97, 98), Int32Array.of(263, 98)]);
  });

  test.each([
    ['an empty prompt', '', {}, { code: 'invalid_argument', param: 'prompt' }],
    [
      'an id out of range',
      [1, 272],
      {},
      { code: 'invalid_argument', param: 'prompt[1]', expected: 'a token id from 0 to 271', received: '272' },
    ],
    ['a fractional id', [1.5], {}, { code: 'invalid_argument', param: 'prompt[0]' }],
    ['a prompt of another type', { a: 1 }, {}, { code: 'invalid_argument', param: 'prompt' }],
    ['a prompt that fills the context', 'x'.repeat(4096), {}, { code: 'context_length_exceeded', param: 'prompt' }],
    [
      'a text that is too long in any tokenization',
      'é'.repeat(30_000),
      {},
      {
        code: 'context_length_exceeded',
        param: 'prompt',
        expected: `at most ${4096 * '<|endoftext|>'.length} bytes`,
        received: '60000 bytes',
      },
    ],
    [
      'a prompt and a completion that exceed the context together',
      'x'.repeat(4000),
      { maxTokens: 97 },
      { code: 'context_length_exceeded', param: 'maxTokens', received: '97' },
    ],
    ['a negative temperature', 'x', { temperature: -1 }, { code: 'invalid_argument', param: 'temperature' }],
    [
      'an unknown option',
      'x',
      { temprature: 1 },
      {
        code: 'invalid_argument',
        param: 'options.temprature',
        received: 'an unknown option. Did you mean temperature?',
      },
    ],
    ['options that are not an object', 'x', 5, { code: 'invalid_argument', param: 'options' }],
    [
      'no prompt',
      undefined,
      {},
      { code: 'invalid_argument', param: 'prompt', expected: 'a text, or an array of token ids' },
    ],
    [
      'a truncation to zero tokens',
      'x',
      { truncatePrompt: 0 },
      { code: 'invalid_argument', param: 'truncatePrompt', expected: 'an integer of 1 or more, or -1' },
    ],
    [
      'an unknown truncation side',
      'x',
      { truncatePrompt: 1, truncationSide: 'top' },
      { code: 'invalid_argument', param: 'truncationSide' },
    ],
    ['bad words that are not a list', 'x', { badWords: 'a' }, { code: 'invalid_argument', param: 'badWords' }],
    ['a blank bad word', 'x', { badWords: ['a', ' '] }, { code: 'invalid_argument', param: 'badWords[1]' }],
    [
      'spacesBetweenSpecialTokens that is not a boolean',
      'x',
      { spacesBetweenSpecialTokens: 1 },
      { code: 'invalid_argument', param: 'spacesBetweenSpecialTokens' },
    ],
    [
      'addSpecialTokens that is not a boolean',
      'x',
      { addSpecialTokens: 1 },
      { code: 'invalid_argument', param: 'addSpecialTokens' },
    ],
  ])('refuses %s', async (_name, prompt, sampling, expected) => {
    const engine = await loadEngine();
    const generation = engine.generate(prompt as string, sampling as SamplingParams);
    await expect(generation.result()).rejects.toMatchObject(expected);
    await expect(collect(generation)).rejects.toMatchObject(expected);
    await expect(generation.submitted).rejects.toMatchObject(expected);
  });

  test('a share of 0 of the memory of a GPU is refused', async () => {
    await expect(loadEngine({ gpuMemoryUtilization: 0 })).rejects.toMatchObject({
      code: 'invalid_argument',
      message: 'gpuMemoryUtilization: expected a number above 0 and up to 1, got 0',
    });
  });

  test('accepts token ids of another class of arrays, as in a vm context', async () => {
    const engine = await loadEngine();
    const ids = runInNewContext('Int32Array.of(5, 6)') as Int32Array;
    expect(ids).not.toBeInstanceOf(Int32Array);
    expect([...(await engine.generate(ids, { maxTokens: 1 }).result()).promptTokenIds]).toEqual([5, 6]);
  });

  test('reports queue_full of the engine', async () => {
    fake.answer = () => ({ text: 'a'.repeat(10_000) });
    const engine = await loadEngine({ maxNumSeqs: 1, maxQueuedRequests: 0 });
    const first = engine.generate('x');
    await first.submitted;
    await expect(engine.generate('x').submitted).rejects.toMatchObject({ code: 'queue_full' });
    first.abort();
  });

  test('calls that are being tokenized count against the queue', async () => {
    const engine = await loadEngine({ maxNumSeqs: 1, maxQueuedRequests: 1 });
    const calls = [engine.generate('a'), engine.chat([{ role: 'user', content: 'b' }])];
    expect(() => engine.checkCapacity()).toThrow(expect.objectContaining({ code: 'queue_full' }) as Error);
    await expect(engine.generate('c').result()).rejects.toMatchObject({
      code: 'queue_full',
      message: 'The queue is full: 1 of at most 1 sequences are waiting',
    });
    await Promise.all(calls.map((call) => call.result()));
    expect(() => engine.checkCapacity()).not.toThrow();
  });

  test('tokenize() counts against the queue', async () => {
    const engine = await loadEngine({ maxNumSeqs: 1, maxQueuedRequests: 0 });
    const first = engine.tokenize('abc');
    await expect(engine.tokenize('abc')).rejects.toMatchObject({ code: 'queue_full' });
    await expect(engine.generate('x').result()).rejects.toMatchObject({ code: 'queue_full' });
    expect([...(await first)]).toEqual([97, 98, 99]);
    await expect(engine.tokenize(7 as never)).rejects.toMatchObject({ code: 'invalid_argument' });
    expect(() => engine.checkCapacity()).not.toThrow();
  });

  test('an aborted call does not wait for its grammar', async () => {
    const engine = await loadEngine();
    const get = jest.spyOn(GrammarCache.prototype, 'get');
    const left = engine.generate('x', { structuredOutput: { type: 'regex', pattern: 'a' } });
    const signal = get.mock.calls[0][1]!;
    expect(signal.aborted).toBe(false);
    left.abort();
    expect(signal.aborted).toBe(true);
    get.mockRestore();
    await expect(left.result()).rejects.toMatchObject({ code: 'aborted' });
    expect(fake.requests).toHaveLength(0);
  });

  test('bounds the waiting prompt tokens, and refused calls release theirs', async () => {
    const engine = await loadEngine({ maxQueuedTokens: 10 });
    const first = engine.generate('x'.repeat(30));
    const second = engine.generate('x'.repeat(30));
    expect(() => engine.checkCapacity()).toThrow(
      expect.objectContaining({
        code: 'queue_full',
        message: 'The queue is full: 16 of at most 10 prompt tokens are waiting',
      }) as Error,
    );
    const settled = await Promise.allSettled([first.result(), second.result()]);
    expect(settled.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected']);
    expect(() => engine.checkCapacity()).not.toThrow();
    await expect(engine.generate('').result()).rejects.toMatchObject({ code: 'invalid_argument' });
    const aborted = engine.generate('x'.repeat(60));
    aborted.abort();
    expect(() => engine.checkCapacity()).not.toThrow();
    await engine.generate('x'.repeat(60)).result();
  });

  test('failed calls that are not read cause no unhandled rejection', async () => {
    const unhandled = jest.fn();
    process.on('unhandledRejection', unhandled);
    const engine = await loadEngine();
    const calls = [engine.generate(''), engine.generate('x', { topP: 7 })];
    while (calls.some((call) => !call.hasEnded)) await new Promise((resolve) => setImmediate(resolve));
    await new Promise((resolve) => setImmediate(resolve));
    process.off('unhandledRejection', unhandled);
    expect(unhandled).not.toHaveBeenCalled();
  });
});

describe('chat', () => {
  test('renders the template, adds no special tokens and returns the request id', async () => {
    const engine = await loadEngine();
    const result = await engine
      .chat(
        [
          {
            role: 'user',
            content: [
              { type: 'text', text: 'a' },
              { type: 'text', text: 'b' },
            ],
          },
        ],
        {},
        { requestId: 'r1', cacheSalt: 's', priority: -2 },
      )
      .result();
    expect(result.id).toBe('r1');
    expect(engine.detokenize(fake.requests[0].promptTokenIds, { skipSpecialTokens: false })).toBe(
      '<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n',
    );
    expect(fake.requests[0]).toMatchObject({ cacheSalt: 's', priority: -2 });
    await expect(engine.generate('a', {}, { priority: 2 ** 31 }).result()).rejects.toMatchObject({ param: 'priority' });
    expect(() => engine.checkCapacity({ priority: 0.5 })).toThrow('priority');
  });

  const tools = [
    { type: 'function', function: { name: 'f', parameters: { type: 'object' } } },
    { type: 'function', function: { name: 'g' } },
  ] as const;

  test('reports tool calls as events and finishes with tool_calls', async () => {
    fake.answer = () => ({
      text: 'I look.\n<tool_call>\n{"name": "f", "arguments": {"a": [1, "}"]}}\n</tool_call>\n<tool_call>{"name":"g"}</tool_call>',
    });
    const engine = await loadEngine();
    const generation = engine.chat([{ role: 'user', content: 'x' }], { tools });
    const events = await collect(generation);
    expect(textOf(events)).toBe('I look.');
    const calls = events.filter((event) => event.type === 'toolCall');
    expect(calls.map(({ callIndex, name, argumentsDelta }) => `${callIndex}${name} ${argumentsDelta}`)).toEqual([
      '0f ',
      ...[...'{"a": [1, "}"]}'].map((char) => `0f ${char}`),
      '1g ',
      '1g {}',
    ]);
    expect(calls[0].id).toMatch(/^call_[0-9a-f]{24}$/);
    expect(events.at(-1)).toMatchObject({ type: 'finish', finishReason: 'tool_calls' });
    const {
      choices: [choice],
    } = await generation.result();
    expect(choice).toMatchObject({
      text: 'I look.',
      toolCalls: [
        { name: 'f', arguments: '{"a": [1, "}"]}' },
        { name: 'g', arguments: '{}' },
      ],
      finishReason: 'tool_calls',
    });
    const numTokens = events.reduce((sum, event) => sum + (event.type === 'delta' ? event.tokenIds.length : 0), 0);
    expect(numTokens).toBe(choice.tokenIds.length);
  });

  test.each<[maxTokens: number, calls: object[]]>([
    [5, []],
    [10, []],
    [20, [{ name: 'f', arguments: '' }]],
    [31, [{ name: 'f', arguments: '{"a' }]],
  ])('a call cut after %d tokens is no text and finishes with length', async (maxTokens, toolCalls) => {
    fake.answer = () => ({ text: '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>' });
    const engine = await loadEngine();
    const {
      choices: [choice],
    } = await engine.chat([{ role: 'user', content: 'x' }], { tools, maxTokens }).result();
    expect(choice).toMatchObject({ text: '', toolCalls, finishReason: 'length' });
  });

  test.each([[{ tools, toolChoice: 'none' as const }], [{ tools: [] }], [{}]])(
    'without tools, calls stay text and the prompt has no tools: %j',
    async (options) => {
      fake.answer = () => ({ text: '<tool_call>{"name": "f"}</tool_call>' });
      const engine = await loadEngine();
      const {
        choices: [choice],
      } = await engine.chat([{ role: 'user', content: 'x' }], options).result();
      expect(choice).toMatchObject({
        text: '<tool_call>{"name": "f"}</tool_call>',
        toolCalls: [],
        finishReason: 'stop',
      });
      expect(engine.detokenize(fake.requests[0].promptTokenIds, { skipSpecialTokens: false })).toBe(
        '<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n',
      );
    },
  );

  test('parses reasoning from the state at the end of the prompt', async () => {
    const template =
      "{% for m in messages %}{{ m.role + ':' + m.content + '\\n' }}{% endfor %}{{ 'assistant:' }}{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% elif opened is defined %}{{ '<think>\\n' }}{% endif %}";
    const engine = await loadEngine({}, tinyModel({ 'chat_template.jinja': template }));
    fake.answer = () => ({ text: '<think>\nHm.\n</think>\n\nYes.' });
    const messages = [{ role: 'user', content: 'x' }] as const;
    const {
      choices: [before],
    } = await engine.chat(messages).result();
    expect(before).toMatchObject({ reasoning: 'Hm.', text: 'Yes.' });
    fake.answer = () => ({ text: 'Hm.\n</think>\n\nYes.' });
    const generation = engine.chat(messages, { templateKwargs: { opened: true } });
    const events = await collect(generation);
    expect(events.map((event) => (event.type === 'reasoning' ? event.textDelta : '')).join('')).toBe('Hm.');
    expect((await generation.result()).choices[0]).toMatchObject({ reasoning: 'Hm.', text: 'Yes.' });
    fake.answer = () => ({ text: 'Yes <think>.' });
    const {
      choices: [off],
    } = await engine.chat(messages, { templateKwargs: { enable_thinking: false } }).result();
    expect(off.text).toBe('Yes <think>.');
    expect(off).not.toHaveProperty('reasoning');
  });

  test('continues the last message', async () => {
    const engine = await loadEngine();
    expect(
      await engine.renderChat(
        [
          { role: 'user', content: 'x' },
          { role: 'assistant', content: 'So, ' },
        ],
        { continueFinalMessage: true },
      ),
    ).toBe('<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\nSo, ');
  });

  test.each([
    ['no messages', [], {}, { code: 'invalid_argument', param: 'messages' }],
    ['an unknown role', [{ role: 'robot', content: 'x' }], {}, { code: 'invalid_argument', param: 'messages[0].role' }],
    [
      'content of another type',
      [
        { role: 'user', content: 'x' },
        { role: 'user', content: 5 },
      ],
      {},
      { code: 'invalid_argument', param: 'messages[1].content' },
    ],
    [
      'a user message without content',
      [{ role: 'user' }],
      {},
      { code: 'invalid_argument', param: 'messages[0].content' },
    ],
    [
      'an image',
      [{ role: 'user', content: [{ type: 'image_url' }] }],
      {},
      { code: 'invalid_argument', param: 'messages[0].content[0].type' },
    ],
    [
      'a tool without a name',
      [{ role: 'user', content: 'x' }],
      { tools: [{ type: 'function', function: {} }] },
      { code: 'invalid_argument', param: 'tools[0].function.name' },
    ],
    [
      'two tools of one name',
      [{ role: 'user', content: 'x' }],
      { tools: ['f', 'g', 'f'].map((name) => ({ type: 'function', function: { name } })) },
      { code: 'invalid_argument', param: 'tools[2].function.name' },
    ],
    [
      'addGenerationPrompt with continueFinalMessage',
      [{ role: 'user', content: 'x' }],
      { addGenerationPrompt: true, continueFinalMessage: true },
      { code: 'invalid_argument', param: 'addGenerationPrompt' },
    ],
  ])('refuses %s', async (_name, messages, options, expected) => {
    const engine = await loadEngine();
    await expect(engine.chat(messages as never, options as never).result()).rejects.toMatchObject(expected);
  });

  test('a template that throws, does not parse or is missing is a template_error, and generate() still works', async () => {
    for (const [template, message] of [
      ["{{ raise_exception('no system') }}", 'chat template: no system'],
      ['{% if %}', /^chat template: /],
      [null, /but the model has none\. Name a file with the option chatTemplate \(--chat-template\)/],
    ] as const) {
      const engine = await loadEngine(
        {},
        tinyModel({ 'tokenizer_config.json': template === null ? null : { chat_template: template } }),
      );
      await expect(engine.chat([{ role: 'user', content: 'x' }]).result()).rejects.toMatchObject({
        code: 'template_error',
        message: expect.stringMatching(message) as string,
      });
      expect((await engine.generate('x').result()).choices).toHaveLength(1);
    }
  });
});

describe('load and close', () => {
  test('passes one record to the addon and reports the resolved options', async () => {
    const onProgress = jest.fn();
    const engine = await Engine.load(modelDir, { maxModelLen: 512, threads: 2, onProgress });
    engines.push(engine);
    const [load] = fake.loads;
    expect(load.spec).toMatchObject({ vocabSize: 272, hiddenSize: 8, numKvHeads: 1, headDim: 4, attentionScale: 0.5 });
    expect(load.options).toMatchObject({
      device: 'auto',
      threads: 2,
      maxModelLen: 512,
      maxNumSeqs: 64,
      maxNumBatchedTokens: 512,
      maxQueuedRequests: 1024,
      prefixCache: true,
      weightDtype: 'f32',
    });
    expect([...load.tokenizer!.eosTokenIds]).toEqual([258, 256]);
    expect(load.tokenizer!.vocab.special.length).toBe(263);
    expect(load.tensors).toHaveLength(14);
    expect(engine.info).toMatchObject({
      backend: 'fake',
      maxModelLen: 512,
      architecture: 'Qwen2ForCausalLM',
      toolCallFormat: 'hermes',
      samplingDefaults: {},
    });
    expect(onProgress).toHaveBeenCalledWith({ stage: 'load', doneBytes: 1000, totalBytes: 1000 });
  });

  test.each([
    ['tokenizer_config.json', {}],
    [
      'special_tokens_map.json',
      {
        'special_tokens_map.json': { eos_token: { content: '<|im_end|>' } },
        'tokenizer_config.json': { chat_template: TINY_TEMPLATE },
      },
    ],
  ])('the EOS token of %s ends a completion, although config.json names another', async (_name, files) => {
    const config = { ...TINY_CONFIG, eos_token_id: 256 };
    const dir = tinyModel({ 'config.json': config, 'generation_config.json': null, ...files });
    engines.push(await Engine.load(dir));
    expect([...fake.loads[0].tokenizer!.eosTokenIds]).toEqual([256, 258]);
  });

  test('reads the template of chat_template.json, in which models with images have it', async () => {
    const dir = tinyModel({
      'tokenizer_config.json': null,
      'chat_template.json': { chat_template: '{{ bos_token }}{{ messages[0].content }}' },
      'special_tokens_map.json': { bos_token: '<|endoftext|>' },
    });
    const engine = await Engine.load(dir);
    engines.push(engine);
    expect(await engine.renderChat([{ role: 'user', content: 'Hi' }])).toBe('<|endoftext|>Hi');
  });

  test('the model defaults apply to fields that a request leaves out, and can be disabled', async () => {
    const dir = tinyModel({
      'generation_config.json': { do_sample: true, temperature: 0.7, top_p: 0.8, top_k: 20, repetition_penalty: 1.1 },
    });
    const engine = await loadEngine({}, dir);
    await engine.generate('x', { topK: 5 }).result();
    expect(fake.requests[0].sampling).toMatchObject({ temperature: 0.7, topP: 0.8, topK: 5, repetitionPenalty: 1.1 });
    const plain = await loadEngine({ generationConfig: 'none' }, dir);
    await plain.generate('x').result();
    expect(fake.requests[1].sampling).toMatchObject({ temperature: 1, topP: 1, topK: 0, repetitionPenalty: 1 });
    const overridden = await loadEngine({ generationConfigOverrides: { temperature: 0.1 } }, dir);
    expect(overridden.info.samplingDefaults).toEqual({ temperature: 0.1, topP: 0.8, topK: 20, repetitionPenalty: 1.1 });
    const alone = await loadEngine({ generationConfig: 'none', generationConfigOverrides: { topK: 3 } }, dir);
    expect(alone.info.samplingDefaults).toEqual({ topK: 3 });
    const greedy = await loadEngine(
      {},
      tinyModel({ 'generation_config.json': { do_sample: false, temperature: 0.7 } }),
    );
    expect(greedy.info.samplingDefaults).toEqual({ temperature: 0 });
  });

  test('an error of onProgress ends the load', async () => {
    const onProgress = (): void => {
      throw new Error('no more');
    };
    await expect(Engine.load(modelDir, { onProgress })).rejects.toThrow('no more');
  });

  test('a signal ends the load', async () => {
    await expect(Engine.load(modelDir, { signal: AbortSignal.abort() })).rejects.toMatchObject({ code: 'aborted' });
    fake.loadMs = 10_000;
    const controller = new AbortController();
    const load = Engine.load(modelDir, { signal: controller.signal });
    while (fake.loads.length === 0) await new Promise((resolve) => setImmediate(resolve));
    controller.abort();
    await expect(load).rejects.toMatchObject({ code: 'aborted' });
  });

  test.each([
    ['an unknown option', { treads: 2 }, 'options.treads'],
    ['a fraction of threads', { threads: 1.5 }, 'threads'],
    ['an unknown dtype', { dtype: 'int8' }, 'dtype'],
    ['an unknown device', { device: 'tpu' }, 'device'],
    ['zero sequences', { maxNumSeqs: 0 }, 'maxNumSeqs'],
    ['a signal of another type', { signal: 1 }, 'signal'],
    ['a controller in place of its signal', { signal: new AbortController() }, 'signal'],
    ['progress that is no function', { onProgress: true }, 'onProgress'],
    ['an unknown hub', { hub: 'github' }, 'hub'],
    ['zero queued tokens', { maxQueuedTokens: 0 }, 'maxQueuedTokens'],
    ['a template that is not a string', { chatTemplate: 5 }, 'chatTemplate'],
    ['a template that does not parse', { chatTemplate: '{% if' }, 'chatTemplate'],
    ['an override out of range', { generationConfigOverrides: { topP: 2 } }, 'generationConfigOverrides.topP'],
    ['an unknown override', { generationConfigOverrides: { minP: 0.1 } }, 'generationConfigOverrides.minP'],
  ])('refuses %s', async (_name, options, param) => {
    await expect(Engine.load(modelDir, options as never)).rejects.toMatchObject({ code: 'invalid_argument', param });
  });

  test('the error for a text that can only be a path says where it was looked for', async () => {
    await expect(Engine.load('models/no.gguf')).rejects.toMatchObject({
      code: 'model_not_found',
      message: `model "models/no.gguf": expected a path that exists, got none at ${resolve('models/no.gguf')}`,
    });
  });

  test('a folder without a model says what a model directory holds', async () => {
    const dir = mkdtempSync(join(tmpdir(), 'capstan-'));
    await expect(Engine.load(dir)).rejects.toMatchObject({
      code: 'invalid_model',
      message: expect.stringContaining(`expected the file in ${dir}, got none. A model directory holds config.json`),
    });
    rmSync(dir, { recursive: true });
  });

  test('the error for a text that is neither a path nor a name on the hub says both', async () => {
    await expect(Engine.load('no-such-model')).rejects.toMatchObject({
      code: 'model_not_found',
      message:
        'model "no-such-model": expected a path that exists, a name on the hub, or \'demo\': there is no such path, ' +
        'and it is not a name on the hub, ORG/NAME[@revision][:quantization or file]',
    });
  });

  test('close ends open calls, is idempotent, and refuses new ones', async () => {
    fake.answer = () => ({ text: 'a'.repeat(10_000) });
    const engine = await loadEngine();
    const generation = engine.generate('x');
    await generation.submitted;
    await Promise.all([engine.close(), engine.close()]);
    await expect(generation.result()).rejects.toMatchObject({ code: 'engine_closed' });
    await expect(engine.generate('x').result()).rejects.toMatchObject({ code: 'engine_closed' });
    await expect(engine.compile({ type: 'json' })).rejects.toMatchObject({ code: 'engine_closed' });
    for (const call of [() => engine.checkCapacity(), () => engine.stats()])
      expect(call).toThrow(expect.objectContaining({ name: 'CapstanError', code: 'engine_closed' }) as Error);
    await expect(engine.tokenize('x')).rejects.toMatchObject({ name: 'CapstanError', code: 'engine_closed' });
  });

  test('several engines run in one process', async () => {
    const [a, b] = await Promise.all([loadEngine(), loadEngine()]);
    const results = await Promise.all([a.generate('x').result(), b.generate('x').result()]);
    expect(results.every(({ choices }) => choices[0].text.startsWith('Hello'))).toBe(true);
  });
});

test.each([[[]], [['demo']], [['demo', { maxModelLen: 512 }, 1]]])(
  'new Engine(...%j) says what to call instead',
  (args) => {
    const Constructor = Engine as unknown as new (...given: unknown[]) => Engine;
    const make = () => new Constructor(...args);
    expect(make).toThrow(expect.objectContaining({ name: 'CapstanError', code: 'invalid_argument' }));
    expect(make).toThrow('Engine.load');
  },
);

test('tokenizes and detokenizes', async () => {
  const engine = await loadEngine();
  const ids = await engine.tokenize('é<|im_end|>');
  expect([...ids]).toEqual([195, 169, 258]);
  expect(engine.detokenize(ids)).toBe('é');
  expect(engine.detokenize(ids, { skipSpecialTokens: false })).toBe('é<|im_end|>');
  expect([...engine.tokenBytes(195)]).toEqual([195]);
  expect(() => engine.detokenize([9999])).toThrow(
    expect.objectContaining({ code: 'invalid_argument', param: 'tokenIds[0]' }) as Error,
  );
});
