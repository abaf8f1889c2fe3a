/** Budgets in money at the gateway, over each database. */
import type { RequestListener, ServerResponse } from 'node:http';
import { Engine } from '../../../../ts';
import { overBackends } from '../../access/support';
import { migrated } from '../support';
import { fake } from '../../../fakes/fake-addon';
import { loadPoolingEngine } from '../../../fakes/pooling-engine';
import { tinyModel } from '../../../fakes/tiny-model';
import { closeAll, errorOf, startReplica, until } from '../gateway/support';
import { chunk, listen, sendEvents, sendJson, upstream as upstreamAt, withBody } from '../gateway/upstream-support';
import { NANO, question, Shop } from './support';

let engine: Engine;
let shop: Shop;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
afterAll(() => engine.close());

interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
}

/** A server of another runtime: reports a usage, and keeps the bodies. */
function upstream(usage: object | undefined, bodies: string[], status = 200): RequestListener {
  return (request, response) => {
    const pieces: Buffer[] = [];
    request.on('data', (piece: Buffer) => pieces.push(piece));
    request.on('end', () => {
      bodies.push(Buffer.concat(pieces).toString());
      response.writeHead(status, { 'Content-Type': 'application/json' });
      response.end(JSON.stringify({ choices: [], ...(usage === undefined ? {} : { usage }) }));
    });
  };
}

overBackends((make) => {
  beforeEach(async () => {
    fake.reset();
    shop = await Shop.open(await make(migrated));
  });
  afterEach(async () => {
    await closeAll();
    await shop.close();
  });

  describe('the built-in runtime', () => {
    // A token of the prompt costs 1 and one of the answer 2, in millionths.
    const PRICE = { model: 'chat', input: '1', output: '2' };
    beforeEach(async () => {
      shop.deploy('chat', [await shop.builtin(engine)]);
      await shop.price(PRICE);
    });

    test('pays for what a request used, exactly', async () => {
      const id = await shop.budget({ amount: '1' });
      const response = await shop.post('/d/chat/v1/chat/completions', { ...question(), max_tokens: 5 });
      const { usage } = (await response.json()) as { usage: Usage };
      expect(usage.completion_tokens).toBe(5);
      const cost = BigInt(usage.prompt_tokens * 1_000 + 5 * 2_000);
      await until(() => shop.running.records.length === 1);
      expect(await shop.spent(id)).toMatchObject({ spent: cost, open: 0n });
      expect(await shop.report()).toEqual({ chat: cost });
    });

    test('never exceeds a budget with 64 streams at once', async () => {
      fake.answer = () => ({ text: 'and on '.repeat(400) });
      const id = await shop.budget({ amount: '0.02' });
      const statuses = await Promise.all(
        Array.from({ length: 64 }, async (_, i) => {
          const response = await shop.post('/d/chat/v1/chat/completions', {
            ...question(`Question ${i}`),
            stream: true,
            max_tokens: 300,
          });
          await response.text();
          return response.status;
        }),
      );
      await until(() => shop.running.records.length === 64);
      expect(new Set(statuses)).toEqual(new Set([200, 429]));
      const { spent, open } = await shop.spent(id);
      expect(open).toBe(0n);
      const used = shop.running.records.reduce(
        (sum, { usage }) =>
          usage === undefined
            ? sum
            : sum + BigInt(usage.promptTokens) * 1_000n + BigInt(usage.completionTokens) * 2_000n,
        0n,
      );
      expect(spent).toBe(used);
      expect(used).toBeLessThanOrEqual(20_000_000n);
      expect(used).toBeGreaterThan(4_000_000n);
    });

    test('lowers the tokens to what the budget still pays, then refuses', async () => {
      fake.answer = () => ({ text: 'and on '.repeat(400) });
      await shop.budget({ amount: '0.0001' });
      const first = await shop.post('/d/chat/v1/chat/completions', { ...question(), max_tokens: 300 });
      const body = (await first.json()) as { usage: Usage; choices: { finish_reason: string }[] };
      expect(first.status).toBe(200);
      expect(body.choices[0].finish_reason).toBe('length');
      const { prompt_tokens: prompt, completion_tokens: completion } = body.usage;
      expect(prompt + 2 * completion).toBeGreaterThan(98);
      expect(prompt + 2 * completion).toBeLessThanOrEqual(100);
      await until(() => shop.running.records.length === 1);
      const second = await shop.post('/d/chat/v1/chat/completions', question());
      expect([second.status, errorOf(await second.text()).code]).toEqual([429, 'budget_exceeded']);
    });

    test('limits all prompts and choices of a request together', async () => {
      fake.answer = () => ({ text: 'and on '.repeat(400) });
      const id = await shop.budget({ amount: '0.0003' });
      const response = await shop.post('/d/chat/v1/completions', {
        prompt: ['one', 'two'],
        n: 2,
        max_tokens: 300,
        temperature: 1,
      });
      expect([response.status, await response.text()]).toEqual([429, expect.stringContaining('budget_exceeded')]);
      await until(() => shop.running.records.length === 1);
      expect((await shop.spent(id)).spent).toBeLessThanOrEqual(300_000n);
      const smaller = await shop.post('/d/chat/v1/completions', {
        prompt: ['one', 'two'],
        n: 2,
        max_tokens: 20,
        temperature: 1,
      });
      expect(smaller.status).toBe(200);
      await until(() => shop.running.records.length === 2);
      expect((await shop.spent(id)).spent).toBeLessThanOrEqual(300_000n);
    });

    test.each([
      ['/v1/responses', { input: 'Hi' }, 'max_output_tokens'],
      ['/v1/messages', question(), 'max_tokens'],
      ['/v1/completions', { prompt: 'Hi' }, 'max_tokens'],
    ])('%s is billed and limited', async (path, body, limit) => {
      fake.answer = () => ({ text: 'and on '.repeat(400) });
      const id = await shop.budget({ amount: '0.0001' });
      const response = await shop.post(`/d/chat${path}`, { ...body, [limit]: 300, stream: true });
      await response.text();
      expect(response.status).toBe(200);
      await until(() => shop.running.records.length === 1);
      const { spent } = await shop.spent(id);
      expect(spent).toBeGreaterThan(97_000n);
      expect(spent).toBeLessThanOrEqual(100_000n);
    });

    test('pays for what was computed when the client leaves, and returns the rest', async () => {
      fake.answer = () => ({ text: 'and on '.repeat(10_000), stepMs: 5 });
      const id = await shop.budget({ amount: '1' });
      const controller = new AbortController();
      const response = await shop.post(
        '/d/chat/v1/chat/completions',
        { ...question(), stream: true, max_tokens: 1_000 },
        { signal: controller.signal },
      );
      // The first chunk may hold the role only.
      const reader = response.body!.getReader();
      for (let text = ''; !/"content":"[^"]/.test(text);) text += Buffer.from((await reader.read()).value!).toString();
      controller.abort();
      await until(() => shop.running.records.length === 1);
      const { spent, open } = await shop.spent(id);
      const { usage } = shop.running.records[0];
      expect(usage!.completionTokens).toBeGreaterThan(0);
      expect(usage!.completionTokens).toBeLessThan(500);
      expect([spent, open]).toEqual([
        BigInt(usage!.promptTokens) * 1_000n + BigInt(usage!.completionTokens) * 2_000n,
        0n,
      ]);
    });

    test('returns everything of a request that fails', async () => {
      const id = await shop.budget({ amount: '1' });
      const response = await shop.post('/d/chat/v1/chat/completions', { messages: 'none' });
      expect(response.status).toBe(400);
      await until(() => shop.running.records.length === 1);
      expect(await shop.spent(id)).toMatchObject({ spent: 0n, open: 0n });
      expect(await shop.report()).toEqual({});
    });

    test('pays for embeddings', async () => {
      const embedder = await loadPoolingEngine('embed');
      shop.deploy('chat', [await shop.builtin(embedder)]);
      const id = await shop.budget({ amount: '0.000005' });
      const embed = async (input: string | string[]) => {
        const response = await shop.post('/d/chat/v1/embeddings', { model: 'tiny', input });
        await response.text();
        return response.status;
      };
      expect(await embed(['ab', 'c'])).toBe(200);
      expect(await embed('abcdefgh')).toBe(429);
      await until(() => shop.running.records.length === 2);
      expect((await shop.spent(id)).spent).toBe(3_000n);
      expect(await embed('ab')).toBe(200);
      await embedder.close();
    });

    test('reads a long body whole', async () => {
      const id = await shop.budget({ amount: '5' });
      const body = JSON.stringify({ padding: 'x'.repeat(2_000_000), ...question(), max_tokens: 3 });
      const response = await shop.post('/d/chat/v1/chat/completions', body);
      expect([response.status, await response.text()]).toEqual([200, expect.any(String)]);
      await until(() => shop.running.records.length === 1);
      expect((await shop.spent(id)).spent).toBeGreaterThan(0n);
    });
  });

  // Each is converted: the upstream has chat completions alone.
  describe('an upstream', () => {
    const CALLS: [string, object, string][] = [
      ['/v1/chat/completions', { ...question(), max_tokens: 1_000 }, 'max_tokens'],
      ['/v1/responses', { input: 'Hi', max_output_tokens: 1_000 }, 'max_completion_tokens'],
      ['/v1/messages', { ...question(), max_tokens: 1_000 }, 'max_tokens'],
    ];
    const used = { prompt_tokens: 10, completion_tokens: 4, total_tokens: 14 };
    let bodies: Record<string, unknown>[];
    const deployUpstream = async (
      respond: (response: ServerResponse, isStream: boolean) => void,
      served: 'chat' | 'messages' = 'chat',
    ): Promise<void> => {
      bodies = [];
      const url = await listen(
        withBody((body, response) => {
          bodies.push(body);
          respond(response, body.stream === true);
        }),
      );
      shop.deploy('chat', [upstreamAt(url, { interfaces: [served] })]);
      await shop.price({ model: 'chat', input: '1', output: '10' });
    };
    const limitIn = (body: Record<string, unknown>): number =>
      Number(body.max_tokens ?? body.max_completion_tokens ?? Number.NaN);

    test.each(CALLS)('gets a limit that the budget pays, and is billed by its usage: %s', async (path, body) => {
      await deployUpstream((response) =>
        sendJson(response, {
          choices: [{ message: { role: 'assistant', content: 'Yo' }, finish_reason: 'stop' }],
          usage: used,
        }),
      );
      const id = await shop.budget({ amount: '0.002' });
      const response = await shop.post(`/d/chat${path}`, { model: 'm', ...body });
      await response.text();
      expect(response.status).toBe(200);
      expect(limitIn(bodies[0])).toBeGreaterThan(100);
      expect(limitIn(bodies[0])).toBeLessThan(200);
      await until(() => shop.running.records.length === 1);
      expect(await shop.spent(id)).toMatchObject({ spent: 50_000n, open: 0n });
    });

    test('one with responses gets the limit in the field of newer models, unless the client wrote the other', async () => {
      await deployUpstream((response) => sendJson(response, { choices: [], usage: used }));
      const { replicas } = shop.running.targets.find('chat')!;
      shop.deploy(
        'chat',
        replicas.map((replica) => ({
          ...replica,
          upstream: { ...replica.upstream!, interfaces: ['chat', 'responses'] as const },
        })),
      );
      await shop.budget({ amount: '0.01' });
      const limits = { max_tokens: undefined, max_completion_tokens: undefined };
      for (const fields of [{}, { max_tokens: 7 }, { max_completion_tokens: 7 }]) {
        const body = { ...question('say "max_tokens"'), ...fields };
        expect((await shop.post('/d/chat/v1/chat/completions', { model: 'm', ...body })).status).toBe(200);
        const { max_tokens, max_completion_tokens } = { ...limits, ...bodies.at(-1) };
        if ('max_tokens' in fields || 'max_completion_tokens' in fields)
          expect({ max_tokens, max_completion_tokens }).toEqual({ ...limits, ...fields });
        else expect([max_tokens, typeof max_completion_tokens]).toEqual([undefined, 'number']);
      }
    });

    test.each(CALLS)('a stream that breaks off costs something: %s', async (path, body) => {
      await deployUpstream((response) => {
        sendEvents(
          response,
          chunk({ role: 'assistant', content: 'a' }),
          chunk({ content: 'b' }),
          chunk({ content: 'c' }),
        );
        setImmediate(() => response.destroy());
      });
      const id = await shop.budget({ amount: '1' });
      const response = await shop.post(`/d/chat${path}`, { model: 'm', ...body, stream: true });
      await response.text().catch(() => undefined);
      await until(() => shop.running.records.length === 1);
      const { spent, open } = await shop.spent(id);
      expect(spent).toBeGreaterThan(0n);
      expect(open).toBe(0n);
    });

    test.each<[string, 'chat' | 'messages']>([
      ['/v1/messages', 'messages'],
      ['/v1/chat/completions', 'messages'],
      ['/v1/chat/completions', 'chat'],
      ['/v1/messages', 'chat'],
    ])('a stream that the client leaves is billed by its events: %s to %s', async (path, served) => {
      const numTokens = 200;
      const word = { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'hello ' } };
      const start = { type: 'message_start', message: { model: 'm', usage: { input_tokens: 20, output_tokens: 1 } } };
      const block = { type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } };
      await deployUpstream((response) => {
        const isChat = served === 'chat';
        if (!isChat) sendEvents(response, start, block);
        for (let i = 0; i < numTokens; i++) sendEvents(response, isChat ? chunk({ content: 'hello ' }) : word);
      }, served);
      const id = await shop.budget({ amount: '1' });
      const controller = new AbortController();
      const response = await shop.post(
        `/d/chat${path}`,
        { model: 'm', ...question(), max_tokens: 5_000, stream: true },
        { signal: controller.signal },
      );
      const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ''; text.split('hello').length <= numTokens; text += (await reader.read()).value ?? '');
      controller.abort();
      await until(() => shop.running.records.length === 1);
      const { spent, open } = await shop.spent(id);
      const tokens = (Number(spent) - 20_000) / 10_000;
      expect(tokens).toBeGreaterThanOrEqual(numTokens);
      // An event counts at least a token for each 64 bytes.
      expect(tokens).toBeLessThan(5 * numTokens);
      expect(open).toBe(0n);
    });

    test('a stream is billed exactly if the client leaves after the usage', async () => {
      await deployUpstream((response) => {
        sendEvents(response, chunk({ content: 'a' }), { choices: [], usage: used });
      });
      const id = await shop.budget({ amount: '1' });
      const controller = new AbortController();
      const response = await shop.post(
        '/d/chat/v1/chat/completions',
        { model: 'm', ...question(), stream: true, stream_options: { include_usage: true } },
        { signal: controller.signal },
      );
      const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ''; !text.includes('total_tokens'); text += (await reader.read()).value ?? '');
      controller.abort();
      await until(() => shop.running.records.length === 1);
      expect((await shop.spent(id)).spent).toBe(50_000n);
    });

    test.each(CALLS)('may finish what a client leaves, so that costs its reservation: %s', async (path, body) => {
      let hasArrived = (): void => {};
      let broken: ServerResponse | undefined;
      await deployUpstream((response) => {
        broken = response;
        hasArrived();
      });
      const id = await shop.budget({ amount: '0.002' });
      const client = new AbortController();
      const arrived = new Promise<void>((resolve) => (hasArrived = resolve));
      const left = shop.post(`/d/chat${path}`, { model: 'm', ...body }, { signal: client.signal }).catch(() => {});
      await arrived;
      client.abort();
      await left;
      broken?.destroy();
      await until(() => shop.running.records.length === 1);
      const { spent, open } = await shop.spent(id);
      expect(open).toBe(0n);
      expect(spent).toBeGreaterThanOrEqual(BigInt(limitIn(bodies[0])) * 10_000n);
      expect(spent).toBeLessThanOrEqual(2_000_000n);
    });

    test.each(CALLS.flatMap(([path, body]) => [true, false].map((isLong) => [path, isLong, body] as const)))(
      'is billed by the usage of a response that its client has not waited for: %s, longer than 64 KiB: %s',
      async (path, isLong, body) => {
        const client = new AbortController();
        await deployUpstream((response) => {
          client.abort();
          sendJson(response, {
            choices: [
              { message: { role: 'assistant', content: 'Yo'.repeat(isLong ? 50_000 : 1) }, finish_reason: 'stop' },
            ],
            usage: used,
          });
        });
        const id = await shop.budget({ amount: '1' });
        const sent = shop.leaving(`/d/chat${path}`, { model: 'm', ...body }, client.signal);
        await sent.done;
        expect(sent.send).not.toHaveBeenCalled();
        expect(shop.running.records.map(({ status, usage }) => [status, usage?.completionTokens])).toEqual([[499, 4]]);
        expect(await shop.spent(id)).toMatchObject({ spent: 50_000n, open: 0n });
      },
    );

    describe('that sends no first byte within --fallback-after', () => {
      /** Deploys two upstreams. The first one responds when the test decides, by a message of its request. */
      const deployChain = async (begin: (response: ServerResponse) => void = () => {}): Promise<ServerResponse[]> => {
        const late: ServerResponse[] = [];
        const first = await listen(
          withBody((_body, response) => {
            late.push(response);
            begin(response);
          }),
        );
        const second = await listen(
          withBody((_body, response) =>
            sendJson(response, { choices: [], from: 'second', usage: { prompt_tokens: 1, completion_tokens: 1 } }),
          ),
        );
        shop.deploy('chat', [upstreamAt(first)], { fallbacks: ['dep_spare'], fallbackAfterMs: 300 });
        shop.deploy('spare', [upstreamAt(second)]);
        await shop.price({ model: 'chat', input: '1', output: '10' });
        await shop.price({ model: 'spare', input: '1', output: '10' });
        return late;
      };
      const ask = async (fields: object = {}): Promise<unknown> => {
        const body = { model: 'm', ...question(), max_tokens: 1_000, ...fields };
        const response = await shop.post('/d/chat/v1/chat/completions', body);
        expect(response.headers.get('x-capstan-passed-over')).toBe('chat (timeout)');
        return response.json();
      };
      const begin = (response: ServerResponse): void => {
        response.writeHead(200, { 'Content-Type': 'application/json' });
        response.flushHeaders();
      };

      test.each<[string, Parameters<typeof deployChain>[0]]>([
        ['a response', undefined],
        ['the rest of a response that has begun', begin],
      ])('is billed by the usage of %s', async (_what, beginning) => {
        const late = await deployChain(beginning);
        const id = await shop.budget({ amount: '1' });
        expect(await ask()).toMatchObject({ from: 'second' });
        await until(() => shop.running.records.length === 1);
        // Its reservation is open.
        expect(await shop.spent(id)).toMatchObject({ spent: 11_000n });
        expect((await shop.spent(id)).open).toBeGreaterThan(0n);
        if (!late[0].headersSent) begin(late[0]);
        late[0].end(JSON.stringify({ choices: [], usage: used }));
        await shop.running.gateway.drain();
        expect(await shop.spent(id)).toMatchObject({ spent: 61_000n, open: 0n });
        expect(await shop.report()).toEqual({ chat: 50_000n, spare: 11_000n });
        expect(late.length).toBe(1);
      });

      test.each<[string, (response: ServerResponse) => unknown]>([
        ['breaks off', (response) => response.destroy()],
        ['fails', (response) => sendJson(response, { error: { message: 'No.' }, usage: used }, 500)],
      ])('costs nothing if it %s', async (_what, end) => {
        const late = await deployChain();
        const id = await shop.budget({ amount: '1' });
        await ask();
        end(late[0]);
        await shop.running.gateway.drain();
        expect(await shop.spent(id)).toMatchObject({ spent: 11_000n, open: 0n });
      });

      test('is cut if it should stream', async () => {
        const late = await deployChain();
        const id = await shop.budget({ amount: '1' });
        await ask({ stream: true }).catch(() => undefined);
        await until(() => late[0].destroyed);
        await shop.running.gateway.drain();
        expect(await shop.report()).toEqual({ spare: 11_000n });
        expect((await shop.spent(id)).open).toBe(0n);
      });
    });

    const answer = { message: { role: 'assistant', content: 'Yo' } };
    const sendText = (response: ServerResponse, type: string, text: string): void => {
      response.writeHead(200, { 'Content-Type': type });
      response.end(text);
    };
    test.each<[string, boolean, (response: ServerResponse) => void]>([
      ['that does not say why it ended', false, (response) => sendJson(response, { choices: [answer], usage: used })],
      ['that is an error', false, (response) => sendJson(response, { error: { message: 'No.' }, usage: used })],
      ['that should be a stream', true, (response) => sendJson(response, { choices: [answer], usage: used })],
    ])('is billed by the usage of a response %s', async (_what, stream, respond) => {
      await deployUpstream(respond);
      const id = await shop.budget({ amount: '1' });
      const response = await shop.post('/d/chat/v1/messages', { model: 'm', ...question(), max_tokens: 1_000, stream });
      expect([response.status, bodies.length]).toEqual([502, 1]);
      await until(() => shop.running.records.length === 1);
      expect(await shop.spent(id)).toMatchObject({ spent: 50_000n, open: 0n });
      expect(shop.running.records[0].usage).toMatchObject({ promptTokens: 10, completionTokens: 4 });
    });

    test.each<[string, (response: ServerResponse) => void]>([
      ['reports no usage', (response) => sendJson(response, { choices: [answer] })],
      ['is no JSON', (response) => sendText(response, 'application/json', '{"choices": [')],
      ['is too long', (response) => sendText(response, 'application/json', ' '.repeat(17 * 1024 * 1024))],
      ['is a stream without need', (response) => sendEvents(response, chunk({ content: 'a' }))],
    ])('is billed by an estimate for a response that cannot be converted and %s', async (_what, respond) => {
      await deployUpstream(respond);
      const id = await shop.budget({ amount: '0.01' });
      const response = await shop.post('/d/chat/v1/messages', { model: 'm', ...question(), max_tokens: 100 });
      // It is not sent again: the upstream would charge twice.
      expect([response.status, bodies.length]).toEqual([502, 1]);
      await until(() => shop.running.records.length === 1);
      const { spent, open } = await shop.spent(id);
      expect(spent).toBeGreaterThan(0n);
      expect(spent).toBeLessThanOrEqual(10_000_000n);
      expect(open).toBe(0n);
    });

    test('costs nothing if a page answers in its place', async () => {
      await deployUpstream((response) => sendText(response, 'text/html', '<h1>Welcome</h1>'));
      const id = await shop.budget({ amount: '1' });
      const response = await shop.post('/d/chat/v1/messages', { model: 'm', ...question(), max_tokens: 100 });
      expect(response.status).toBe(502);
      await until(() => shop.running.records.length === 1);
      expect(await shop.spent(id)).toMatchObject({ spent: 0n, open: 0n });
    });

    test('is billed for a useless response, and so is the fallback that serves', async () => {
      await deployUpstream((response) => sendJson(response, { choices: [answer], usage: used }));
      const second = await listen(
        withBody((_body, response) =>
          sendJson(response, {
            choices: [{ ...answer, finish_reason: 'stop' }],
            usage: { prompt_tokens: 1, completion_tokens: 1 },
          }),
        ),
      );
      const { replicas } = shop.running.targets.find('chat')!;
      shop.deploy('chat', replicas, { fallbacks: ['dep_spare'] });
      shop.deploy('spare', [upstreamAt(second)]);
      await shop.price({ model: 'spare', input: '1', output: '10' });
      const id = await shop.budget({ amount: '1' });
      const response = await shop.post('/d/chat/v1/messages', { model: 'm', ...question(), max_tokens: 100 });
      expect([response.status, response.headers.get('x-capstan-passed-over')]).toEqual([
        200,
        'chat (upstream_unavailable)',
      ]);
      await response.text();
      await until(() => shop.running.records.length === 1);
      expect(await shop.spent(id)).toMatchObject({ spent: 61_000n, open: 0n });
      expect(await shop.report()).toEqual({ chat: 50_000n, spare: 11_000n });
    });

    test('costs nothing if it refuses', async () => {
      await deployUpstream((response) => sendJson(response, { error: { message: 'No.' } }, 503));
      const id = await shop.budget({ amount: '1' });
      const response = await shop.post('/d/chat/v1/chat/completions', { model: 'm', ...question() });
      expect([response.status, bodies.length > 0]).toEqual([503, true]);
      await until(() => shop.running.records.length === 1);
      expect(await shop.spent(id)).toMatchObject({ spent: 0n, open: 0n });
    });
  });

  describe('another runtime', () => {
    const USAGE = { prompt_tokens: 100, completion_tokens: 50 };
    let bodies: string[];
    beforeEach(async () => {
      bodies = [];
      shop.deploy('chat', [await startReplica(upstream(USAGE, bodies))]);
      await shop.price({ model: 'chat', input: '1', output: '10' });
    });

    test.each<[string, object, RegExp]>([
      ['/v1/chat/completions', { messages: [], max_tokens: 1_000 }, /^\{"messages":\[\],"max_tokens":\d+\}$/],
      ['/v1/chat/completions', { messages: [] }, /^\{"max_tokens":\d+,"messages":\[\]\}$/],
      ['/v1/chat/completions', { max_tokens: null, x: 1 }, /^\{"max_tokens":\d+,"x":1\}$/],
      ['/v1/chat/completions', { max_completion_tokens: 900, n: 2 }, /^\{"max_completion_tokens":\d+,"n":2\}$/],
      ['/v1/completions', { prompt: ['a', 'b'], max_tokens: 700 }, /^\{"prompt":\["a","b"\],"max_tokens":\d+\}$/],
      ['/v1/responses', { input: 'x' }, /^\{"max_output_tokens":\d+,"input":"x"\}$/],
      ['/v1/messages', { max_tokens: 5_000 }, /^\{"max_tokens":\d+\}$/],
    ])('lowers the limit of %s %j', async (path, body, expected) => {
      await shop.budget({ amount: '0.002' });
      const response = await shop.post(`/d/chat${path}`, body);
      await response.text();
      expect(response.status).toBe(200);
      expect(bodies[0]).toMatch(expected);
      const limit = Number(/tokens":(\d+)/.exec(bodies[0])![1]);
      const { n = 1, prompt } = body as { n?: number; prompt?: string[] };
      const promptTokens = Math.ceil(JSON.stringify(body).length / 3);
      const payable = Math.floor((2_000 - promptTokens) / (10 * n * (prompt?.length ?? 1)));
      expect(limit).toBe(payable);
    });

    test('keeps a limit that the budget pays, and every other byte', async () => {
      await shop.budget({ amount: '1' });
      const body = '{ "seed": 12345678901234567890, "max_tokens" : 10, "max_tokens":20, "z":1.0 }';
      await (await shop.post('/d/chat/v1/chat/completions', body)).text();
      expect(bodies).toEqual([body]);
    });

    test('reserves and forwards at most the output of the price', async () => {
      await shop.price({ model: 'chat', input: '1', output: '10', max_output_tokens: 100 });
      let answer: (() => void) | undefined;
      shop.deploy('chat', [
        await startReplica((request, response) => {
          answer = () => upstream(USAGE, bodies)(request, response);
        }),
      ]);
      const id = await shop.budget({ amount: '1' });
      const open = shop.post('/d/chat/v1/chat/completions', '{"max_tokens":1e300}');
      await until(() => answer !== undefined);
      expect((await shop.spent(id)).open).toBe(7_000n + 1_000_000n);
      answer!();
      expect((await open).status).toBe(200);
      expect(bodies).toEqual(['{"max_tokens":100}']);
    });

    test.each([
      ['/v1/completions', '{"n":1.7e308,"prompt":["a","b"],"max_tokens":1}', 'n'],
      ['/v1/chat/completions', '{"model":"expensive","MODEL":"cheap"}', 'model'],
      ['/v1/chat/completions', '{"max_tokens":0}', 'max_tokens'],
    ])('refuses %s %s', async (path, body, param) => {
      const id = await shop.budget({ amount: '1' });
      const response = await shop.post(`/d/chat${path}`, body);
      expect([response.status, await response.text(), bodies]).toEqual([
        400,
        expect.stringContaining(`"param":"${param}"`),
        [],
      ]);
      await until(() => shop.running.records.length === 1);
      expect(await shop.spent(id)).toMatchObject({ spent: 0n, open: 0n });
    });

    test.each([
      ['{"modalities":["text","\\u0061udio"]}', 'modalities'],
      ['{"audio":{"voice":"alloy","format":"wav"}}', 'audio'],
      ['{"Audio":{}}', 'audio'],
      [`{"modalities":["text"${',"text"'.repeat(5_000)},"audio"]}`, 'modalities'],
    ])('gets no request for audio, which costs more than text: %s', async (body, param) => {
      await shop.price({ model: 'chat', input: '1', output: '10' });
      await shop.budget({ amount: '1' });
      const response = await shop.post('/d/chat/v1/chat/completions', body);
      expect([response.status, await response.json()]).toMatchObject([400, { error: { param } }]);
      expect(bodies).toEqual([]);
      const text = await shop.post('/d/chat/v1/chat/completions', '{"modalities":["text"],"audio":null}');
      expect(text.status).toBe(200);
    });

    test('gets no request for a response in the background, which is generated after its bill', async () => {
      const id = await shop.budget({ amount: '1' });
      const statuses = ['true', '1', '"true"', 'false', 'null'].map(async (value) => {
        const response = await shop.post('/d/chat/v1/responses', `{"input":"x","background":${value}}`);
        await response.text();
        return response.status;
      });
      expect(await Promise.all(statuses)).toEqual([400, 400, 400, 200, 200]);
      expect(bodies).toHaveLength(2);
      await until(() => shop.running.records.length === 5);
      expect((await shop.spent(id)).open).toBe(0n);
    });

    test('exceeds a budget at most by the misestimate of the prompt', async () => {
      const id = await shop.budget({ amount: '0.0005' });
      // The body has 64 bytes, which count as 22 tokens. The server counts 100.
      const body = { messages: [], max_tokens: 100, padding: 'x'.repeat(16) };
      const response = await shop.post('/d/chat/v1/chat/completions', body);
      await response.text();
      const limit = Number(/max_tokens":(\d+)/.exec(bodies[0])![1]);
      expect(limit).toBe(47);
      await until(() => shop.running.records.length === 1);
      // 100 tokens of the prompt at 1 and 50 at 10, although 47 were allowed: this server ignores the limit.
      expect((await shop.spent(id)).spent).toBe(600_000n);
      expect((await shop.post('/d/chat/v1/chat/completions', body)).status).toBe(429);
    });

    test('a fallback is billed once, at its own price', async () => {
      const id = await shop.budget({ amount: '1' });
      const others: string[] = [];
      shop.deploy('backup', [await startReplica(upstream(USAGE, others))]);
      await shop.price({ model: 'backup', input: '2', output: '20' });
      shop.deploy('chat', [await startReplica(upstream(undefined, bodies, 503))], { fallbacks: ['dep_backup'] });
      const response = await shop.post('/d/chat/v1/chat/completions', { messages: [], max_tokens: 60 });
      await response.text();
      expect([response.status, bodies.length, others.length]).toEqual([200, 1, 1]);
      await until(() => shop.running.records.length === 1);
      const cost = 100n * 2_000n + 50n * 20_000n;
      expect(await shop.spent(id)).toMatchObject({ spent: cost, open: 0n });
      expect(await shop.report()).toEqual({ backup: cost });
    });

    test('estimates a response without usage, within the reservation', async () => {
      shop.deploy('chat', [await startReplica(upstream(undefined, bodies))]);
      const id = await shop.budget({ amount: '1' });
      await (await shop.post('/d/chat/v1/chat/completions', { messages: [], max_tokens: 2 })).text();
      await until(() => shop.running.records.length === 1);
      const { spent } = await shop.spent(id);
      expect(spent).toBe(10n * 1_000n + 2n * 10_000n);
    });

    test('refuses paths whose cost is not known, and bodies that are no objects', async () => {
      await shop.budget({ amount: '1' });
      const statuses: number[] = [];
      for (const [path, body] of [
        ['/completion', { prompt: 'x', n_predict: 100 }],
        ['/invocations', {}],
        ['/v1/audio/transcriptions', {}],
        ['/v1/chat/completions', '[]'],
        ['/v1/chat/completions', '{"max_tokens": 5'],
        ['/v1/chat/completions', '{"max_tokens":"5"}'],
        ['/tokenize', { prompt: 'x' }],
      ] as const) {
        const response = await shop.post(`/d/chat${path}`, body);
        await response.text();
        statuses.push(response.status);
      }
      expect(statuses).toEqual([403, 403, 403, 400, 400, 400, 200]);
      expect(bodies).toHaveLength(1);
    });

    test('follows a change of the budget at once, also while requests run', async () => {
      const id = await shop.budget({ amount: '0.0001' });
      const ask = async () => {
        const response = await shop.post('/d/chat/v1/chat/completions', { messages: [], max_tokens: 50 });
        await response.text();
        return response.status;
      };
      const statuses = await Promise.all([
        ask(),
        ask(),
        shop.meter.change(() => shop.store.editBudget(shop.admin, id, { amount: '1' })).then(() => ask()),
      ]);
      expect(statuses[2]).toBe(200);
      await until(() => shop.running.records.length === 3);
      const { spent } = await shop.spent(id);
      expect(Number(spent) % 600_000).toBe(0);
      await shop.meter.change(() => shop.store.editBudget(shop.admin, id, { amount: '0.0001' }));
      expect(await ask()).toBe(429);
      await shop.meter.change(() => shop.store.deleteBudget(shop.admin, id));
      expect(await ask()).toBe(200);
    });

    const chatCall = (numBodyBytes: number) => ({
      ownerId: shop.ownerId,
      keyId: undefined,
      target: shop.running.targets.find('chat')!,
      inner: undefined,
      method: 'POST',
      path: '/v1/chat/completions',
      numBodyBytes,
    });

    test('a budget that is lowered below what is reserved keeps what the requests return', async () => {
      const id = await shop.budget({ amount: '1' });
      const call = chatCall(0);
      const bill = await shop.meter.open(call, Buffer.from('{}'), false);
      expect((await shop.spent(id)).open).toBeGreaterThan(100_000_000n);
      await shop.meter.change(() => shop.store.editBudget(shop.admin, id, { amount: '0.001' }));
      bill!.refund();
      const next = await shop.meter.open(call, Buffer.from('{}'), false);
      expect((await shop.spent(id)).open).toBe(1_000_000n);
      next!.refund();
    });

    test('a budget that is set while a body passes counts the request, and does not refuse it', async () => {
      const call = chatCall(2_000_000);
      expect(shop.meter.needsBody(call)).toBe(false);
      const id = await shop.budget({ amount: '1' });
      const bill = await shop.meter.open(call, undefined, false);
      bill!.settle({ promptTokens: 100, completionTokens: 50, cachedTokens: 0 });
      expect(await shop.spent(id)).toMatchObject({ spent: 600_000n, open: 0n });
    });

    test('counts what was spent before the budget, and what open requests cost', async () => {
      const ask = () => shop.post('/d/chat/v1/chat/completions', { messages: [], max_tokens: 50 });
      await (await ask()).text();
      await until(() => shop.running.records.length === 1);
      let answer: (() => void) | undefined;
      shop.deploy('chat', [
        await startReplica((request, response) => {
          request.resume();
          answer = () => {
            response.setHeader('Content-Type', 'application/json');
            response.end(JSON.stringify({ usage: USAGE }));
          };
        }),
      ]);
      const open = ask();
      await until(() => answer !== undefined);
      const id = await shop.budget({ amount: '1' });
      expect((await shop.spent(id)).spent).toBe(600_000n);
      answer!();
      await (await open).text();
      await until(() => shop.running.records.length === 2);
      expect((await shop.spent(id)).spent).toBe(1_200_000n);
    });

    test('survives hostile prices', async () => {
      await shop.price({ model: 'chat', input: '1000000000', output: '1000000000' });
      for (let i = 0; i < 3; i++) {
        shop.deploy('chat', [await startReplica(upstream({ prompt_tokens: 1e9, completion_tokens: 1e9 }, bodies))]);
        await (await shop.post('/d/chat/v1/chat/completions', { messages: [] })).text();
      }
      await until(() => shop.running.records.length === 3);
      expect(await shop.report()).toEqual({ chat: 9n * NANO * NANO });
      const id = await shop.budget({ amount: '1000000000' });
      expect((await shop.spent(id)).taken).toBe(9n * NANO * NANO);
      expect((await shop.post('/d/chat/v1/chat/completions', { messages: [] })).status).toBe(429);
    });

    test('sends an alert to webhooks once', async () => {
      await shop.store.createWebhook(shop.admin, { url: 'https://hooks.example.com/', events: ['budget.alert'] });
      const id = await shop.budget({ amount: '0.0012', alerts: [50, 100] });
      const ask = async () => {
        await (await shop.post('/d/chat/v1/chat/completions', { messages: [], max_tokens: 10 })).text();
        await until(() => shop.running.gateway.numOpenRequests === 0);
        await shop.meter.flush();
        await shop.meter.flush();
      };
      await ask();
      await ask();
      await shop.store.queueWebhookEvents();
      const messages: { payload: string }[] = [];
      for (;;) {
        const [message] = await shop.store.takeWebhookMessages([], 1);
        if (message === undefined) break;
        messages.push(message);
        await shop.store.endWebhookAttempt(message.id, { at: Date.now(), durationMs: 1, status: 200, error: null });
      }
      expect(messages.map(({ payload }) => JSON.parse(payload) as object)).toMatchObject([
        {
          type: 'budget.alert',
          target: { type: 'budget', id },
          data: { percent: 50, spent: '0.0006', amount: '0.0012', currency: 'USD', period: 'total', scope: 'owner' },
        },
        { type: 'budget.alert', data: { percent: 100, spent: '0.0012' } },
      ]);
    });
  });
});
