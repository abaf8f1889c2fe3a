/** What a model writes reaches a terminal without what the terminal would obey. */
import { Command } from 'commander';
import { PassThrough, Writable } from 'node:stream';
import { ChatLoop } from '../../../server/cli/chat-loop';
import { addRunCommand } from '../../../server/cli/commands/run';
import { run as runProgram } from '../../../server/cli/program';
import { Engine } from '../../../ts';
import { fake } from '../../fakes/fake-addon';
import { tinyModel } from '../../fakes/tiny-model';

const ANSWER = 'a\x1b]0;title\x07b\u009b31m\tc\n';
const SHOWN = 'a]0;titleb31m\tc\n';
const model = tinyModel();
let engine: Engine;

beforeAll(async () => {
  process.env.CAPSTAN_ADDON = require.resolve('../../fakes/fake-addon');
  engine = await Engine.load(model);
});
beforeEach(() => {
  fake.reset();
  fake.answer = () => ({ text: ANSWER });
});
afterAll(() => engine.close());

async function run(args: readonly string[], isOutTerminal: boolean): Promise<string> {
  let text = '';
  const program = new Command();
  const io = { env: {}, now: Date.now, out: (part: string) => void (text += part), err: () => {}, isOutTerminal };
  addRunCommand(program, () => {}, io);
  await program.parseAsync(['run', model, '-p', 'Hi', ...args], { from: 'user' });
  return text;
}

/** @param isInputTerminal Otherwise the input is a pipe. */
async function chat(isInputTerminal: boolean, isOutputTerminal: boolean, lines = 'Hi\n', of = engine): Promise<string> {
  let text = '';
  const input = Object.assign(new PassThrough(), { isTTY: isInputTerminal });
  const output = new Writable({
    write: (chunk: Buffer, _encoding, done) => {
      text += chunk.toString();
      done();
    },
  });
  const loop = new ChatLoop(of, { system: undefined, messages: undefined });
  const ended = loop.run(input, Object.assign(output, { isTTY: isOutputTerminal }));
  input.end(lines);
  await ended;
  return text;
}

test('run cleans the answer for a terminal only', async () => {
  expect(await run([], true)).toBe(`${SHOWN}\n`);
  expect(await run([], false)).toBe(`${ANSWER}\n`);
  expect(JSON.parse(await run(['--json'], true))).toMatchObject({ text: expect.stringContaining('31m') });
  expect(await run(['--json'], true)).not.toContain('\u009b');
});

test('chat cleans the answers to a pipe for a terminal only', async () => {
  expect(await chat(false, true)).toBe(`${SHOWN}\n`);
  expect(await chat(false, false)).toBe(`${ANSWER}\n`);
});

test('chat cleans the name of the model', async () => {
  const named = Object.create(engine, { info: { value: { ...engine.info, modelName: 'na\x1b[2Jme' } } }) as Engine;
  expect(await chat(true, true, '', named)).toContain('na[2Jme. /help');
});

test('errors are cleaned', async () => {
  let text = '';
  const spy = jest.spyOn(process.stderr, 'write').mockImplementation((part) => {
    text += part as string;
    return true;
  });
  try {
    expect(await runProgram(['serve', '--config', '/no/\x1b[2Jsuch.yaml'])).toBe(2);
    const failing = await Engine.load(model, { chatTemplate: '{{ raise_exception("a\x1b[2Jb") }}' });
    await chat(false, true, 'Hi\n', failing);
    await failing.close();
  } finally {
    spy.mockRestore();
  }
  expect(text).toContain('a[2Jb');
  expect(text).not.toContain('\x1b');
});
