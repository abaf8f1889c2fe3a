/** Sessions: history, branches, and the context shift. */
import { ChatSession, Engine } from '../../ts';
import { fake } from '../fakes/fake-addon';
import { tinyModel } from '../fakes/tiny-model';

let engine: Engine;
/** Texts of the prompts: a token of the tiny model is a byte. */
let prompts: string[] = [];

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
  engine = await Engine.load(tinyModel(), { maxModelLen: 512 });
});
beforeEach(() => {
  fake.reset();
  prompts = [];
  fake.answer = (prompt) => {
    prompts.push(prompt);
    return { text: `answer ${prompts.length}` };
  };
});
afterAll(() => engine.close());

test('keeps the history', async () => {
  const session = new ChatSession(engine, { system: 'Be brief.' });
  await session.send('one').result();
  await session.send({ role: 'user', content: 'two' }).result();
  expect(session.messages).toEqual([
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: 'one' },
    { role: 'assistant', content: 'answer 1' },
    { role: 'user', content: 'two' },
    { role: 'assistant', content: 'answer 2' },
  ]);
  expect(prompts[1]).toContain('answer 1');
});

test('has the answer in the history when the iteration ends', async () => {
  const session = new ChatSession(engine);
  let text = '';
  for await (const piece of session.send('one').textStream) text += piece;
  expect(session.messages.at(-1)).toEqual({ role: 'assistant', content: text });
});

test('a call that fails or is aborted leaves the history as it was', async () => {
  const session = new ChatSession(engine);
  fake.answer = () => ({ text: 'x', reason: 'error', errorCode: 'numeric_error' });
  await expect(session.send('one').result()).rejects.toMatchObject({ code: 'numeric_error' });
  fake.answer = () => ({ text: 'on '.repeat(1000), stepMs: 5 });
  const open = session.send('two');
  await expect(session.send('three').result()).rejects.toThrow(/expected a session without an open answer/);
  open.abort();
  await expect(open.result()).rejects.toMatchObject({ code: 'aborted' });
  expect(session.messages).toEqual([]);
  fake.answer = () => ({ text: 'fine' });
  await session.send('four').result();
  expect(session.messages).toHaveLength(2);
});

test('after a reset the next call starts at once, and the call before leaves no answer', async () => {
  const session = new ChatSession(engine, { system: 'S' });
  fake.answer = () => ({ text: 'on '.repeat(1000), stepMs: 5 });
  const open = session.send('one');
  session.reset();
  fake.answer = () => ({ text: 'fine' });
  const next = session.send('two');
  await expect(open.result()).rejects.toMatchObject({ code: 'aborted' });
  await expect(session.send('three').result()).rejects.toThrow(/expected a session without an open answer/);
  await next.result();
  expect(session.messages.map(({ content }) => content)).toEqual(['S', 'two', 'fine']);
});

test('a branch does not affect its session', async () => {
  const session = new ChatSession(engine, { system: 'S' });
  await session.send('one').result();
  await session.send('two').result();
  const branch = session.branch(3);
  expect(branch.messages).toHaveLength(3);
  await branch.send('other').result();
  expect(session.messages.map(({ content }) => content)).toEqual(['S', 'one', 'answer 1', 'two', 'answer 2']);
  expect(branch.messages.map(({ content }) => content)).toEqual(['S', 'one', 'answer 1', 'other', 'answer 3']);
  branch.reset();
  expect(branch.messages).toEqual([{ role: 'system', content: 'S' }]);
});

test('a session that was saved as JSON continues', async () => {
  const session = new ChatSession(engine, { system: 'S' });
  await session.send('one').result();
  const restored = new ChatSession(engine, JSON.parse(JSON.stringify(session)));
  expect(restored.messages).toEqual(session.messages);
  await restored.send('two').result();
  expect(prompts[1]).toMatch(/S[^]*one[^]*answer 1[^]*two/);
});

describe('context shift', () => {
  const filler = 'x'.repeat(60);

  test('leaves out the oldest turns and keeps the system message', async () => {
    const session = new ChatSession(engine, { system: 'Stay.', maxTokens: 64 });
    for (let i = 0; i < 8; i++) await session.send(`question ${i} ${filler}`).result();
    expect(session.messages).toHaveLength(17);
    expect(session.numDropped).toBeGreaterThan(0);
    expect(session.numDropped % 2).toBe(0);
    const last = prompts.at(-1)!;
    expect(fake.requests.at(-1)!.promptTokenIds.length).toBeLessThanOrEqual(512 - 64);
    expect(last).toMatch(/^<\|im_start\|>system\nStay\.<\|im_end\|>\n<\|im_start\|>user\nquestion/);
    expect(last).toContain('question 7');
    expect(last).not.toContain('question 0');
  });

  test('does not shift with every turn, so that prompts share their start', async () => {
    const session = new ChatSession(engine, { maxTokens: 32 });
    const dropped: number[] = [];
    for (let i = 0; i < 12; i++) {
      await session.send(`${i} ${filler}`).result();
      dropped.push(session.numDropped);
    }
    const shifts = dropped.filter((count, i) => count !== (dropped[i - 1] ?? 0));
    expect(shifts.length).toBeGreaterThan(1);
    expect(shifts.length).toBeLessThan(8);
  });

  test('a call that fails drops nothing', async () => {
    const session = new ChatSession(engine, { maxTokens: 32 });
    const texts = Array.from({ length: 8 }, (_, i) => `${i} ${filler}`);
    for (const content of texts) session.append({ role: 'user', content }, { role: 'assistant', content: 'yes' });
    fake.answer = (prompt) => {
      prompts.push(prompt);
      return { text: 'x', reason: 'error', errorCode: 'numeric_error' };
    };
    await expect(session.send('one').result()).rejects.toMatchObject({ code: 'numeric_error' });
    expect(prompts[0]).not.toContain(texts[0]);
    expect(session.numDropped).toBe(0);
    fake.answer = () => ({ text: 'fine' });
    await session.send('one').result();
    expect(session.numDropped).toBeGreaterThan(0);
  });

  test('drops a call of a tool together with its result', async () => {
    const session = new ChatSession(engine, { maxTokens: 32 });
    session.append(
      { role: 'user', content: `weather ${filler}` },
      { role: 'assistant', content: '', toolCalls: [{ id: '1', name: 'get_weather', arguments: '{}' }] },
      { role: 'tool', toolCallId: '1', content: `rain ${filler}` },
      { role: 'assistant', content: `It rains. ${filler}` },
    );
    await session.send(`and ${filler}${filler}${filler}`).result();
    expect(session.numDropped).toBe(4);
    expect(prompts[0]).not.toMatch(/rain|get_weather/);
  });

  test('a message that does not fit alone fails, and so does a long history without the shift', async () => {
    const session = new ChatSession(engine, { maxTokens: 32 });
    await expect(session.send('x'.repeat(600)).result()).rejects.toMatchObject({ code: 'context_length_exceeded' });
    const strict = new ChatSession(engine, { maxTokens: 32, contextShift: false });
    const all = async () => {
      for (let i = 0; i < 12; i++) await strict.send(`${i} ${filler}`).result();
    };
    await expect(all()).rejects.toMatchObject({ code: 'context_length_exceeded' });
  });
});

test('names what is wrong', async () => {
  expect(() => new ChatSession(engine, { system: 'a', messages: [{ role: 'system', content: 'b' }] })).toThrow(
    /system: expected no text beside messages/,
  );
  expect(() => new ChatSession(engine, { messages: [{ role: 'user' }] })).toThrow(/messages\[0\]\.content/);
  await expect(new ChatSession(engine).send(undefined as never).result()).rejects.toThrow(/messages\[0\]: expected/);
});

test.each([
  ['no engine', () => new ChatSession(undefined as never), 'engine'],
  ['a promise of an engine', () => new ChatSession(Promise.resolve(engine) as never), 'engine'],
  ['options that are null', () => new ChatSession(engine, null as never), 'options'],
  ['an unknown option', () => new ChatSession(engine, { systemPrompt: 'S' } as never), 'options.systemPrompt'],
  ['a wrong type', () => new ChatSession(engine, { contextShift: 'no' as never }), 'contextShift'],
  ['a message that is none', () => new ChatSession(engine).append('Hi' as never), 'messages[0]'],
  ['a negative number', () => new ChatSession(engine).branch(-1), 'numMessages'],
  ['more messages than there are', () => new ChatSession(engine).branch(1), 'numMessages'],
])('refuses at once: %s', (_name, run, param) => {
  expect(run).toThrow(expect.objectContaining({ code: 'invalid_argument', param }) as Error);
});

test('an invalid message is named by its place among those that were sent', async () => {
  const session = new ChatSession(engine, { messages: [{ role: 'user', content: 'a' }] });
  await expect(session.send({ role: 'user' } as never).result()).rejects.toThrow(/^messages\[0\]\.content/);
});
