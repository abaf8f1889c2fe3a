/** Speculation through the library and HTTP, with the embedded model: every answer equals the one without it. */
import { App } from '../../server/inference/app';
import { Metrics } from '../../server/inference/metrics/metrics';
import { type ChatMessage, Engine, type GenerateEvent, type SamplingParams } from '../../ts';
import { exchange } from '../fakes/memory-exchange';

const COPY = 'The harbour has nine boats, a tall crane and a small blue house. ';
const TEXT = `${COPY.repeat(3)}Repeat it: ${COPY}`;
const MESSAGES: ChatMessage[] = [{ role: 'user', content: `Repeat this text twice: ${COPY.repeat(2)}` }];
const SAMPLING: SamplingParams[] = [
  { temperature: 0, maxTokens: 120 },
  { temperature: 0, maxTokens: 60, logprobs: 3, ignoreEos: true },
  { temperature: 0.9, seed: 4, maxTokens: 120, repetitionPenalty: 1.05 },
  { temperature: 0.7, seed: 5, topP: 0.9, maxTokens: 100, presencePenalty: 0.2, minTokens: 50 },
  { temperature: 0.4, seed: 6, topK: 20, maxTokens: 100, stop: ['boats, a tall', 'zz'], logprobs: 0 },
  { temperature: 0.8, seed: 7, maxTokens: 80, n: 3 },
  {
    temperature: 0,
    maxTokens: 90,
    structuredOutput: { type: 'regex', pattern: '(The|the|harbour|has|[a-z]+|[ ,.])+' },
  },
];

let plain: Engine;
let eager: Engine;
beforeAll(async () => {
  plain = await Engine.load('demo', { prefixCache: false });
  eager = await Engine.load('demo', {
    speculative: { method: 'ngram', numSpeculativeTokens: 6, promptLookupMax: 4, promptLookupMin: 1 },
  });
});
afterAll(() => Promise.all([plain.close(), eager.close()]));

const accepted = (): number => eager.stats().numAcceptedTokens.reduce((sum, count) => sum + count, 0);
/** Everything of a result but its times. */
const answersOf = async (engine: Engine): Promise<unknown[]> =>
  Promise.all(
    SAMPLING.map(async (sampling) => {
      const { choices, usage } = await engine.generate(TEXT, sampling).result();
      const { promptTokens, completionTokens } = usage;
      return { choices, promptTokens, completionTokens };
    }),
  );

test('the library returns the same choices, log-probabilities and usage', async () => {
  const wanted = await answersOf(plain);
  expect(await answersOf(eager)).toEqual(wanted);
  expect(accepted()).toBeGreaterThan(20);
  const { numDrafts, numDraftTokens, numAcceptedTokens } = eager.stats();
  expect(numAcceptedTokens).toHaveLength(6);
  expect(numAcceptedTokens[0]).toBeLessThanOrEqual(numDrafts);
  expect(accepted()).toBeLessThan(numDraftTokens);
  expect([plain.stats().numDrafts, plain.stats().numAcceptedTokens]).toEqual([0, []]);
});

test('one delta carries all tokens of a step, with their log-probabilities', async () => {
  const deltas = async (engine: Engine): Promise<Extract<GenerateEvent, { type: 'delta' }>[]> => {
    const found = [];
    for await (const event of engine.generate(TEXT, { temperature: 0, maxTokens: 60, logprobs: 1, ignoreEos: true }))
      if (event.type === 'delta') found.push(event);
    return found;
  };
  const [wanted, got] = [await deltas(plain), await deltas(eager)];
  expect(got.map(({ textDelta }) => textDelta).join('')).toBe(wanted.map(({ textDelta }) => textDelta).join(''));
  expect(got.flatMap(({ tokenIds }) => tokenIds)).toEqual(wanted.flatMap(({ tokenIds }) => tokenIds));
  expect(got.flatMap(({ logprobs }) => logprobs)).toEqual(wanted.flatMap(({ logprobs }) => logprobs));
  expect(Math.max(...got.map(({ tokenIds }) => tokenIds.length))).toBeGreaterThan(2);
  for (const { tokenIds, logprobs } of got) expect(logprobs).toHaveLength(tokenIds.length);
});

test('a model that drafts for itself is always right, and changes no answer', async () => {
  const drafting = await Engine.load('demo', { speculative: { model: 'demo', numSpeculativeTokens: 3 } });
  try {
    expect(await answersOf(drafting)).toEqual(await answersOf(plain));
    const { numDraftTokens, numAcceptedTokens } = drafting.stats();
    // Such a draft is as slow as a token, so the engine drafts now and then only.
    expect(numDraftTokens).toBeGreaterThan(0);
    expect(numAcceptedTokens.reduce((sum, count) => sum + count, 0)).toBe(numDraftTokens);
    expect(drafting.info.weightBytes).toBe(2 * plain.info.weightBytes);
    expect(drafting.info.notes).toContainEqual(expect.stringMatching(/^the draft model takes \d+ MiB of weights and/));
  } finally {
    await drafting.close();
  }
});

test('text that a schema forces takes few steps, and changes no answer', async () => {
  const forced = await Engine.load('demo', { speculative: { method: 'grammar', numSpeculativeTokens: 7 } });
  try {
    expect(await answersOf(forced)).toEqual(await answersOf(plain));
    const schema = {
      type: 'object',
      properties: { identification_number: { type: 'integer' }, delivery_address: { enum: ['the harbour'] } },
      required: ['identification_number', 'delivery_address'],
      additionalProperties: false,
    };
    const sampling = {
      temperature: 0.8,
      seed: 2,
      maxTokens: 120,
      structuredOutput: { type: 'json', schema },
    } as const;
    // The first request computes the masks: a proposal waits for none.
    const answers = [];
    for (let i = 0; i < 2; i++) answers.push((await forced.generate(TEXT, sampling).result()).choices[0].text);
    expect(answers[1]).toBe((await plain.generate(TEXT, sampling).result()).choices[0].text);
    expect(Object.keys(JSON.parse(answers[1]) as object)).toEqual(['identification_number', 'delivery_address']);
    const { numAcceptedTokens } = forced.stats();
    expect(numAcceptedTokens.reduce((sum, count) => sum + count, 0)).toBeGreaterThan(8);
  } finally {
    await forced.close();
  }
});

describe('over HTTP', () => {
  const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };
  function makeApp(engine: Engine): App {
    const metrics = new Metrics({ compat: 'vllm' });
    const app = new App({
      servedNames: ['demo'],
      healthStallTimeoutMs: 1000,
      sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
      log: log as never,
      routes: [metrics.route],
    });
    app.serve(metrics.observing(engine, 'demo'));
    return app;
  }
  const BODY = { model: 'demo', messages: MESSAGES, temperature: 0.6, seed: 3, max_tokens: 90, logprobs: true };
  const withoutIds = (value: unknown): unknown =>
    JSON.parse(JSON.stringify(value, (key, field: unknown) => (key === 'id' || key === 'created' ? undefined : field)));

  test.each([{}, { n: 2, top_logprobs: 2 }, { stop: ['boats'] }])('a response is the same with %j', async (more) => {
    const body = async (engine: Engine): Promise<unknown> => {
      const reply = await exchange(makeApp(engine), '/v1/chat/completions', { ...BODY, ...more });
      expect(reply.status).toBe(200);
      return withoutIds({ ...reply.json, usage: { ...reply.json.usage, prompt_tokens_details: undefined } });
    };
    expect(await body(eager)).toEqual(await body(plain));
  });

  test('a stream has the same text, log-probabilities and usage', async () => {
    const read = async (engine: Engine): Promise<unknown> => {
      const stream = { stream: true, stream_options: { include_usage: true } };
      const reply = await exchange(makeApp(engine), '/v1/chat/completions', { ...BODY, ...stream });
      const chunks = reply.events.filter((event) => event !== '[DONE]');
      const choices = chunks.flatMap(({ choices }) => choices);
      return {
        text: choices.map(({ delta }) => delta.content ?? '').join(''),
        logprobs: choices.flatMap(({ logprobs }) => logprobs?.content ?? []),
        finish: choices.map(({ finish_reason }) => finish_reason).filter((reason) => reason !== null),
        completion: chunks.at(-1).usage.completion_tokens,
      };
    };
    const before = accepted();
    expect(await read(eager)).toEqual(await read(plain));
    expect(accepted()).toBeGreaterThan(before);
  });

  test('metrics count the accepted tokens, under the names of vLLM too', async () => {
    const { text } = await exchange(makeApp(eager), '/metrics');
    const { numDrafts, numAcceptedTokens } = eager.stats();
    expect(text).toContain(`capstan_spec_decode_accepted_tokens_total ${accepted()}\n`);
    expect(text).toMatch(new RegExp(`vllm:spec_decode_num_drafts_total\\{.*\\} ${numDrafts}\n`));
    expect(text).toContain(`capstan_spec_decode_accepted_tokens_per_pos_total{position="0"} ${numAcceptedTokens[0]}\n`);
  });
});
