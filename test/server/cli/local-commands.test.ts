/** `capstan chat`, `run`, `doctor` and `completion` in a separate process, with the fake addon. */
import { type ChildProcessByStdio, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { prepare } from '../../fakes/server-process';
import { temporaryFolder } from '../../fakes/temporary-folder';
import { tinyModel } from '../../fakes/tiny-model';

const main = join(__dirname, '../../../dist/server/main.js');
const model = tinyModel();
const folder = temporaryFolder('chat');
let env: NodeJS.ProcessEnv;

beforeAll(() => {
  env = { ...process.env, ...prepare(), NO_COLOR: '1' };
});

function run(args: string[], input = '') {
  const { status, stdout, stderr } = spawnSync(process.execPath, [main, ...args], { encoding: 'utf8', env, input });
  return { status, stdout, stderr };
}

const HELLO = 'Hello from the fake engine. Größe 😀!';

describe('chat in a pipe', () => {
  test('answers each line, keeps the history and saves it', () => {
    const file = join(folder, 'saved.json');
    const { status, stdout, stderr } = run(
      ['chat', model, '--system', 'Be brief.'],
      `Hi\n"""\nof two\nlines\n"""\nand \\\nhere\n/save ${file}\n/reset\n`,
    );
    expect([status, stderr]).toEqual([0, '']);
    expect(stdout).toBe(`${HELLO}\n`.repeat(3));
    const { messages } = JSON.parse(readFileSync(file, 'utf8'));
    expect(messages.map(({ role, content }: any) => [role, content])).toEqual([
      ['system', 'Be brief.'],
      ['user', 'Hi'],
      ['assistant', HELLO],
      ['user', 'of two\nlines'],
      ['assistant', HELLO],
      ['user', 'and \nhere'],
      ['assistant', HELLO],
    ]);
    const again = join(folder, 'again.json');
    expect(run(['chat', model, '--load', file], `More\n/save ${again}\n`).status).toBe(0);
    expect(JSON.parse(readFileSync(again, 'utf8')).messages).toHaveLength(9);
  });

  test('/system starts again, and /help lists the commands', () => {
    const file = join(folder, 'system.json');
    const { stdout } = run(['chat', model], `Hi\n/system Speak French.\n/save ${file}\n/help\n`);
    expect(JSON.parse(readFileSync(file, 'utf8')).messages).toEqual([{ role: 'system', content: 'Speak French.' }]);
    expect(stdout).toMatch(/\/system TEXT[^]*\/reset[^]*\/save FILE[^]*\/help/);
  });

  test.each(['/exit', '/quit', '/bye'])('%s leaves', (command) => {
    const { status, stdout } = run(['chat', model], `Hi\n${command}\nHi\n`);
    expect([status, stdout.trim().split('\n').length]).toEqual([0, 1]);
  });

  test('a message that fails, an unknown command and a missing file exit with 1 and say what to do', () => {
    const { status, stderr } = run(['chat', model], 'boom\n/nope\n/save\n');
    expect(status).toBe(1);
    expect(stderr).toMatch(
      /error: .*\n[^]*expected \/help, \/system, \/reset, \/save or \/exit, got \/nope[^]*\/save conv/,
    );
    const broken = join(folder, 'broken.json');
    writeFileSync(broken, '{}');
    expect(run(['chat', model, '--load', broken])).toMatchObject({
      status: 2,
      stderr: expect.stringContaining('expected a file that /save wrote'),
    });
  });
});

describe('an answer without end', () => {
  let child: ChildProcessByStdio<Writable, Readable, Readable>;
  let errors: string;
  afterEach(() => child.kill('SIGKILL'));

  /** Starts a command, and waits for the first text of its answer. Its input stays open unless `ends`. */
  async function answer(args: string[], input: string, ends = false): Promise<void> {
    child = spawn(process.execPath, [main, ...args], { env, stdio: 'pipe' });
    errors = '';
    child.stderr.on('data', (bytes: Buffer) => (errors += bytes.toString()));
    child.stdin.write(input);
    if (ends) child.stdin.end();
    await once(child.stdout, 'data');
  }
  const exited = async (): Promise<number | null> => ((await once(child, 'close')) as [number | null])[0];

  test('Ctrl-C ends a chat whose input is a pipe, though it has read more lines', async () => {
    await answer(['chat', model], 'forever\nHi\n');
    let rest = '';
    child.stdout.on('data', (bytes: Buffer) => (rest += bytes.toString()));
    child.kill('SIGINT');
    expect(await exited()).toBe(130);
    expect([rest.includes('Hello'), errors]).toEqual([false, '']);
  });

  test('chat ends quietly when its output has no reader, though it has read more lines', async () => {
    await answer(['chat', model], 'forever\nforever\n');
    child.stdout.destroy();
    expect(await exited()).toBe(0);
    expect(errors).toBe('');
  });

  test('run ends quietly when its output has no reader', async () => {
    await answer(['run', model, '-p', 'forever'], '', true);
    child.stdout.destroy();
    expect(await exited()).toBe(0);
    expect(errors).toBe('');
  });
});

/** Runs chat in a pseudoterminal, and types when the screen shows a text. */
async function inTerminal(steps: readonly [until: string | RegExp, keys: string][]): Promise<[string, number | null]> {
  const command = [process.execPath, main, 'chat', model].join(' ');
  // The shell ignores the exit status of `script` without -e.
  const child = spawn('script', ['-qec', command, '/dev/null'], { env: { ...env, TERM: 'xterm' } });
  let screen = '';
  let from = 0;
  const pending = [...steps];
  child.stdout.on('data', (bytes: Buffer) => {
    screen += bytes.toString();
    while (pending.length > 0) {
      const [until, keys] = pending[0];
      const rest = screen.slice(from);
      if (typeof until === 'string' ? !rest.includes(until) : !until.test(rest)) return;
      from = screen.length;
      pending.shift();
      child.stdin.write(keys);
    }
  });
  const [code] = (await once(child, 'close')) as [number | null];
  return [screen, code];
}

test('chat in a terminal: a speed line, Ctrl-C stops an answer, Ctrl-D leaves', async () => {
  const [screen, code] = await inTerminal([
    ['> ', 'Hi\r'],
    [/tokens\/s[^]*> /, 'forever\r'],
    ['and on and on', '\x03'],
    ['> ', '/system S\r'],
    ['> ', `/save ${join(folder, 'one.json')}\r`],
    [/Saved 1 message to .*[^]*> /, 'half a line\x03'],
    [/Ctrl-D leaves\.[^]*> /, '\x04'],
  ]);
  expect(code).toBe(0);
  expect(screen).toMatch(/\d+ tokens, [\d.]+ tokens\/s, first token after \d+ ms/);
  expect(screen).toContain('/help lists the commands');
  // NO_COLOR: no colors and no styles.
  expect(screen).not.toMatch(/\x1b\[\d*m/);
});

describe('run', () => {
  test('answers a prompt, to which it adds standard input', () => {
    expect(run(['run', model, '-p', 'Hi'])).toEqual({ status: 0, stdout: `${HELLO}\n`, stderr: '' });
    const { stdout } = run(['run', model, '-p', 'How is the'], 'weather?');
    expect(stdout).toContain('Let me look.');
  });

  test('--json has text, finish reason and usage', () => {
    const { stdout } = run(['run', model, '-p', 'Hi', '--json', '--max-tokens', '5', '--seed', '1']);
    expect(JSON.parse(stdout)).toMatchObject({
      text: 'Hello',
      finishReason: 'length',
      usage: { completionTokens: 5 },
    });
  });

  test.each([
    [['run'], /expected a prompt: capstan run -p/],
    [['run', '-p', 'x', '--temperature', 'hot'], /temperature/],
    [['run', '-p', 'x', '--max-tokens', '0'], /--max-tokens/],
    [['run', '-p', 'x', '--reasoning-effort', 'much'], /--reasoning-effort: expected none/],
  ])('%j is refused', (args, message) => {
    const { status, stderr } = run(args);
    expect(stderr).toMatch(message);
    expect(status).toBe(2);
  });
});

describe('doctor', () => {
  test('describes the machine, as JSON too', () => {
    expect(run(['doctor']).stdout).toMatch(
      /Platform +\w+-\w+[^]*Instruction set[^]*Memory +[\d.]+ \wB of [^]*GPUs[^]*Models run on +the CPU/,
    );
    const info = JSON.parse(run(['doctor', '--json']).stdout);
    expect(info).toMatchObject({ device: 'cpu', node: process.version, notes: [expect.any(String)] });
    // A machine without the driver must not read that the driver lists nothing.
    const hasDriver = existsSync('/proc/driver/nvidia/gpus');
    expect(info.notes[0].includes('No NVIDIA driver is loaded')).toBe(!hasDriver);
  });

  test('exits with 1 and the next step if the addon does not load', () => {
    const args = [main, 'doctor'];
    const broken = { ...env, CAPSTAN_ADDON: join(folder, 'missing.node') };
    const { status, stdout } = spawnSync(process.execPath, args, { encoding: 'utf8', env: broken });
    expect(status).toBe(1);
    expect(stdout).toMatch(/nothing: the native addon does not load[^]*missing\.node does not exist[^]*Next:/);
  });
});

describe('completion', () => {
  function complete(line: string): string[] {
    const script = `${run(['completion', 'bash']).stdout}
COMP_WORDS=(${line}); COMP_CWORD=$((\${#COMP_WORDS[@]} - 1)); _capstan; echo "\${COMPREPLY[@]}"`;
    return spawnSync('bash', ['-c', script], { encoding: 'utf8' }).stdout.trim().split(' ');
  }

  test('bash completes commands, subcommands and flags', () => {
    expect(complete('capstan ch')).toEqual(['chat']);
    expect(complete('capstan models i')).toEqual(['info']);
    expect(complete('capstan chat --sy')).toEqual(['--system']);
  });

  test('zsh uses the same script, fish another; other shells are refused', () => {
    expect(run(['completion', 'zsh']).stdout).toMatch(/^autoload -U \+X bashcompinit && bashcompinit\n# Completion/);
    expect(run(['completion', 'fish']).stdout).toContain(
      "complete -c capstan -n '__fish_seen_subcommand_from doctor' -l json -d 'print JSON'\n",
    );
    expect(run(['completion', 'tcsh'])).toMatchObject({
      status: 2,
      stderr: expect.stringContaining('bash, zsh or fish'),
    });
  });
});
