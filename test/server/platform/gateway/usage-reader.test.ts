import { type ReplicaUsage, USAGE_COMMENT } from '../../../../server/http/replica-headers';
import { UsageComment, type UsageReader, UsageTail } from '../../../../server/platform/gateway/usage-reader';

const USED = 'prompt=12;completion=30;cached=4';
const USAGE: ReplicaUsage = { promptTokens: 12, completionTokens: 30, cachedTokens: 4 };

function pass(reader: UsageReader, pieces: readonly string[]): { passed: string; eager: string[] } {
  const eager = pieces.map((piece) => reader.take(Buffer.from(piece)).toString());
  return { passed: eager.join('') + reader.finish().toString(), eager };
}

describe('the usage comment at the end of a stream', () => {
  const stream = `data: {"a":"ü"}\n\n:\n\ndata: [DONE]\n\n${USAGE_COMMENT}${USED}\n\n`;
  const seen = 'data: {"a":"ü"}\n\n:\n\ndata: [DONE]\n\n';

  test('is removed and parsed, wherever the pieces are split', () => {
    const bytes = Buffer.from(stream);
    for (let cut = 0; cut <= bytes.length; cut++) {
      const reader = new UsageComment();
      const passed = Buffer.concat([
        reader.take(bytes.subarray(0, cut)),
        reader.take(bytes.subarray(cut)),
        reader.finish(),
      ]);
      expect([cut, passed.toString(), reader.usage]).toEqual([cut, seen, USAGE]);
    }
    const single = new UsageComment();
    const passed = Buffer.concat([...bytes].map((byte) => single.take(Buffer.from([byte]))).concat(single.finish()));
    expect([passed.toString(), single.usage]).toEqual([seen, USAGE]);
  });

  test('withholds nothing else', () => {
    const reader = new UsageComment();
    const pieces = ['data: 1\n\n', ':\n\n', ': ping\n\n', 'data: : capstan-usage prompt=1\n\n', 'data: [DONE]\n\n'];
    expect(pass(reader, pieces)).toEqual({ passed: pieces.join(''), eager: pieces });
    expect(reader.usage).toBeUndefined();
  });

  test('is passed on when it is incomplete or malformed', () => {
    for (const end of [': capstan', ': capstan-usage nonsense\n\n']) {
      const reader = new UsageComment();
      expect(pass(reader, ['data: 1\n\n', end]).passed).toBe(`data: 1\n\n${end}`);
      expect(reader.usage).toBeUndefined();
    }
  });
});

describe('the usage of other runtimes', () => {
  const body = (usage: object) =>
    JSON.stringify({
      choices: [{ message: { content: 'of \\"usage\\":{"prompt_tokens":9}' } }],
      usage,
      prompt_logprobs: null,
    });

  test.each<[string, object, ReplicaUsage | undefined]>([
    [
      'in full',
      { prompt_tokens: 12, completion_tokens: 30, total_tokens: 42, prompt_tokens_details: { cached_tokens: 4 } },
      USAGE,
    ],
    [
      'without details',
      { prompt_tokens: 12, completion_tokens: 30, prompt_tokens_details: null },
      { ...USAGE, cachedTokens: 0 },
    ],
    [
      'of an embedding',
      { prompt_tokens: 5, total_tokens: 5 },
      { promptTokens: 5, completionTokens: 0, cachedTokens: 0 },
    ],
    [
      'of a response',
      { input_tokens: 12, input_tokens_details: { cached_tokens: 4 }, output_tokens: 30, total_tokens: 42 },
      { ...USAGE, cachedTokens: 4 },
    ],
    [
      "of Anthropic's message, whose input leaves out the cache",
      { input_tokens: 7, cache_creation_input_tokens: 1, cache_read_input_tokens: 4, output_tokens: 30 },
      { ...USAGE, cachedTokens: 4 },
    ],
    [
      'whose prompt_tokens include the cache',
      { prompt_tokens: 12, completion_tokens: 30, cache_read_input_tokens: 4, cache_creation_input_tokens: 5 },
      USAGE,
    ],
    ['nonsense', { prompt_tokens: -1, completion_tokens: 'x' }, undefined],
  ])('is read from a body: %s', (_name, usage, expected) => {
    const reader = new UsageTail();
    const text = body(usage);
    expect(pass(reader, [text.slice(0, 20), text.slice(20)]).passed).toBe(text);
    expect(reader.usage).toEqual(expected);
  });

  test('is read from the last event that has it, however long the stream is', () => {
    const reader = new UsageTail();
    const pieces = Array.from(
      { length: 1_000 },
      (_, i) =>
        `data: {"choices":[{"delta":{"content":"${'x'.repeat(50)}"}}],"usage":{"prompt_tokens":12,"completion_tokens":${i}}}\n\n`,
    );
    expect(pass(reader, [...pieces, 'data: [DONE]\n\n']).eager.slice(0, -1)).toEqual(pieces);
    expect(reader.usage).toEqual({ promptTokens: 12, completionTokens: 999, cachedTokens: 0 });
  });

  test("is put together from the first and the last event of Anthropic's stream", () => {
    const reader = new UsageTail();
    const start = {
      type: 'message_start',
      message: { usage: { input_tokens: 8, cache_read_input_tokens: 4, output_tokens: 1 } },
    };
    const pieces = [
      `event: message_start\ndata: ${JSON.stringify(start)}\n\n`,
      ...Array.from(
        { length: 500 },
        () => `event: content_block_delta\ndata: {"delta":{"text":"${'x'.repeat(50)}"}}\n\n`,
      ),
      `event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":30}}\n\n`,
    ];
    pass(reader, pieces);
    expect(reader.usage).toEqual({ promptTokens: 12, completionTokens: 30, cachedTokens: 4 });
  });

  test("is not taken from the client's own JSON at the start of a stream", () => {
    const parameters = { usage: { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 } };
    for (const head of [
      { type: 'response.created', response: { tools: [{ type: 'function', name: 'f', parameters }] } },
      { type: 'response.created', response: { tools: [{ type: 'message_start', message: parameters }] } },
    ]) {
      const reader = new UsageTail();
      const last = {
        type: 'response.completed',
        response: { ...head.response, usage: { input_tokens: 12, output_tokens: 30 } },
      };
      const delta = `data: {"type":"response.output_text.delta","delta":"${'x'.repeat(3_000)}"}\n\n`;
      pass(reader, [`data: ${JSON.stringify(head)}\n\n`, delta, `data: ${JSON.stringify(last)}\n\n`]);
      expect(reader.usage).toEqual({ promptTokens: 12, completionTokens: 30, cachedTokens: 0 });
    }
  });

  test.each([{ prompt_tokens: 56, total_tokens: 56 }, { total_tokens: 56 }])(
    'is read from the start of a ranking: %j',
    (usage) => {
      const reader = new UsageTail();
      const results = Array.from({ length: 500 }, (_, index) => ({
        index,
        document: { text: 'of "usage":{"prompt_tokens":9}' },
        relevance_score: 0.5,
      }));
      const text = JSON.stringify({ id: 'rerank-1', model: 'm', usage, results });
      expect(pass(reader, [text.slice(0, 30), text.slice(30, 9_000), text.slice(9_000)]).passed).toBe(text);
      expect(reader.usage).toEqual({ promptTokens: 56, completionTokens: 0, cachedTokens: 0 });
    },
  );

  test('is undefined when there is none', () => {
    const reader = new UsageTail();
    expect(pass(reader, ['{"a":"\\"usage\\":{\\"prompt_tokens\\":1}"}']).passed).toBe(
      '{"a":"\\"usage\\":{\\"prompt_tokens\\":1}"}',
    );
    expect(reader.usage).toBeUndefined();
  });
});
