/** runTools: calls, their results, errors and limits. */
import { z } from 'zod';
import { defineTool, Engine, runTools, type ToolRunEvent } from '../../ts';
import { fake } from '../fakes/fake-addon';
import { tinyModel } from '../fakes/tiny-model';

let engine: Engine;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
  engine = await Engine.load(tinyModel());
});
beforeEach(() => fake.reset());
afterAll(() => engine.close());

const call = (name: string, args: unknown): string =>
  `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;

/** Answers with calls until the prompt has results. */
function answerWith(...calls: string[]): void {
  fake.answer = (prompt) => ({
    text: prompt.includes('<tool_response>') ? 'done' : calls.join('\n'),
  });
}

const add = defineTool({
  description: 'Adds two numbers.',
  input: z.object({ a: z.number(), b: z.number() }),
  execute: ({ a, b }) => ({ sum: a + b }),
});

test('runs a function and returns the answer', async () => {
  answerWith(call('add', { a: 1, b: 2 }));
  const events: ToolRunEvent[] = [];
  const run = runTools(engine, 'Add 1 and 2.', { tools: { add } });
  for await (const event of run) events.push(event);
  expect(events.filter(({ type }) => type === 'toolResult')).toMatchObject([
    { name: 'add', input: { a: 1, b: 2 }, output: { sum: 3 }, content: '{"sum":3}' },
  ]);
  const { text, messages, numSteps, usage, choice } = await run.result();
  expect([text, numSteps, choice.finishReason]).toEqual(['done', 2, 'stop']);
  expect(messages.map(({ role }) => role)).toEqual(['assistant', 'tool', 'assistant']);
  expect(usage.totalTokens).toBe(usage.promptTokens + usage.completionTokens);
});

test('result() alone runs everything, and textStream has the text of all answers', async () => {
  answerWith('Let me add.', call('add', { a: 1, b: 2 }));
  await expect(runTools(engine, 'Add', { tools: { add } }).result()).resolves.toMatchObject({ text: 'done' });
  let text = '';
  for await (const piece of runTools(engine, 'Add', { tools: { add } }).textStream) text += piece;
  expect(text).toMatch(/^Let me add\.\s*done$/);
});

test('constrains the arguments, unless the tool is not strict', async () => {
  answerWith(call('add', { a: 1, b: 2 }));
  await runTools(engine, 'Add', { tools: { add } }).result();
  expect(fake.requests[0].grammar).not.toBeNull();
  fake.reset();
  answerWith(call('add', { a: 1, b: 2 }));
  await runTools(engine, 'Add', { tools: { add: { ...add, strict: false } } }).result();
  expect(fake.requests[0].grammar).toBeNull();
});

test('runs calls of one answer at the same time, up to the limit, and keeps their order', async () => {
  let [numRunning, most] = [0, 0];
  const releases: (() => void)[] = [];
  const wait = defineTool({
    input: z.object({ i: z.number() }),
    strict: false,
    execute: async ({ i }) => {
      most = Math.max(most, ++numRunning);
      await new Promise<void>((resolve) => {
        releases.push(resolve);
        // The newest of two ends first.
        if (releases.length === 2) for (const release of releases.splice(0).reverse()) release();
      });
      numRunning--;
      return i;
    },
  });
  answerWith(...[0, 1, 2, 3].map((i) => call('wait', { i })));
  const { messages } = await runTools(engine, 'Go', { tools: { wait }, maxParallelCalls: 2 }).result();
  expect(most).toBe(2);
  expect(messages.filter(({ role }) => role === 'tool').map(({ content }) => content)).toEqual(['0', '1', '2', '3']);
});

test.each([
  ['arguments that the schema refuses', call('add', { a: 'x', b: 2 }), /^Error: a: .*number/],
  ['arguments that are no JSON', '<tool_call>\n{"name": "add", "arguments": {"a": 1,}}\n</tool_call>', /^Error: /],
])('the model gets the error of %s', async (_name, text, expected) => {
  answerWith(text);
  const { messages, toolResults } = await runTools(engine, 'Go', {
    tools: { add: { ...add, strict: false } },
  }).result();
  expect(messages[1].content).toMatch(expected);
  expect(toolResults[0].error).toBeDefined();
});

test('the model gets the message of an error that a function throws', async () => {
  answerWith(call('fail', {}));
  const fail = defineTool({
    execute: () => {
      throw new Error('no such city');
    },
  });
  const { messages } = await runTools(engine, 'Go', { tools: { fail } }).result();
  expect(messages[1].content).toBe('Error: no such city');
});

test('a function that takes too long fails, and its signal aborts', async () => {
  answerWith(call('hang', {}));
  let reason: unknown;
  const hang = defineTool({
    execute: (_input, { signal }) =>
      new Promise(() => {
        signal.addEventListener('abort', () => (reason = signal.reason));
      }),
  });
  const { messages } = await runTools(engine, 'Go', { tools: { hang }, toolTimeoutMs: 10 }).result();
  expect(messages[1].content).toMatch(/^Error: .*timeout/);
  expect(reason).toMatchObject({ name: 'TimeoutError' });
});

test('a schema that takes too long to check the arguments fails, too', async () => {
  answerWith(call('hang', {}));
  const jsonSchema = { input: () => ({ type: 'object' }), output: () => ({ type: 'object' }) };
  const input = { '~standard': { version: 1, vendor: 'test', validate: () => new Promise(() => {}), jsonSchema } };
  const hang = { input, execute: () => 'never' } as never;
  const { messages } = await runTools(engine, 'Go', { tools: { hang }, toolTimeoutMs: 10 }).result();
  expect(messages[1].content).toMatch(/^Error: .*timeout/);
});

test('calls above the limit of an answer do not run', async () => {
  answerWith(call('add', { a: 1, b: 1 }), call('add', { a: 2, b: 2 }));
  const { messages } = await runTools(engine, 'Go', { tools: { add }, maxCallsPerStep: 1 }).result();
  expect(messages[1].content).toBe('{"sum":2}');
  expect(messages[2].content).toBe('Error: Expected at most 1 calls at a time');
});

test('maxSteps ends a run that does not stop calling', async () => {
  fake.answer = () => ({ text: call('add', { a: 1, b: 1 }) });
  const { numSteps, choice } = await runTools(engine, 'Go', { tools: { add }, maxSteps: 3 }).result();
  expect([numSteps, choice.finishReason]).toEqual([3, 'tool_calls']);
});

test('leaving the loop aborts the run', async () => {
  fake.answer = () => ({ text: 'on '.repeat(1000), stepMs: 5 });
  const run = runTools(engine, 'Go', { tools: { add } });
  for await (const _ of run) break;
  await expect(run.result()).rejects.toMatchObject({ code: 'aborted' });
  expect(fake.aborted).toHaveLength(1);
});

test('a signal aborts the answer, and a function that runs', async () => {
  answerWith(call('hang', {}));
  const abort = new AbortController();
  const hang = defineTool({ execute: () => new Promise(() => abort.abort()) });
  const run = runTools(engine, 'Go', { tools: { hang }, signal: abort.signal });
  await expect(run.result()).rejects.toMatchObject({ code: 'aborted' });
});

test('names what is wrong', async () => {
  const start = (options: object) => runTools(engine, 'Go', { tools: { add }, ...options }).result();
  await expect(start({ maxSteps: 0 })).rejects.toThrow(/maxSteps: expected an integer from 1 to 1000, got 0/);
  await expect(start({ tools: { add: {} } })).rejects.toThrow(/tools\.add\.execute: expected a function/);
  await expect(start({ tools: { add: { ...add, inputs: add.input } } })).rejects.toThrow(
    /tools\.add\.inputs: expected one of the options description, input, .*Did you mean input\?/,
  );
  await expect(start({ tools: { add: { ...add, input: 'x' } } })).rejects.toThrow(
    /tools\.add\.input: expected a Standard Schema, such as one of Zod, or a JSON Schema, got "x"/,
  );
});

test.each([
  ['no options', () => runTools(engine, 'Go', undefined as never), 'options'],
  ['no engine', () => runTools('Go' as never, 'Go', { tools: { add } }), 'engine'],
  ['messages that are none', () => runTools(engine, 5 as never, { tools: { add } }), 'messages'],
  ['a choice of several answers', () => runTools(engine, 'Go', { tools: { add }, n: 2 } as never), 'options.n'],
])('refuses %s', async (_name, start, param) => {
  await expect(start().result()).rejects.toMatchObject({ code: 'invalid_argument', param });
});

test('a misspelt limit is an error that names the limit', async () => {
  const run = runTools(engine, 'Go', { tools: { add }, maxStep: 3 } as never);
  await expect(run.result()).rejects.toThrow(/options\.maxStep: .*Did you mean maxSteps\?/);
});
