/** Each code block of the documentation is checked, or plan.ts says why not. */
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Command } from 'commander';
import { parse } from 'yaml';
import { normalize } from '../../../server/cli/commands/serve';
import { buildProgram } from '../../../server/cli/program';
import { temporaryFolder } from '../../fakes/temporary-folder';
import { type Block, blocksOf, listPages } from './blocks';
import { type Check, CHECKS, GENERATED_LANGUAGES, SESSIONS } from './plan';
import { typeErrors } from './type-check';

const blocks = listPages().flatMap(blocksOf);
const isShell = ({ language }: Block): boolean => ['shell', 'sh', 'bash'].includes(language);
const firstLine = ({ text }: Block): string => text.split('\n')[0];

function checkOf(block: Block): Check | undefined {
  if (GENERATED_LANGUAGES[block.page]?.includes(block.language)) return { skip: 'generated' };
  const checks = CHECKS[block.page] ?? {};
  return checks[firstLine(block)] ?? checks['*'];
}

test('the plan names only blocks that exist', () => {
  const unused = Object.entries(CHECKS).flatMap(([page, checks]) => {
    const lines = blocks.filter((block) => block.page === page).map(firstLine);
    return Object.keys(checks).filter((line) => line !== '*' && !lines.includes(line));
  });
  expect(unused).toEqual([]);
  expect(blocks.length).toBeGreaterThan(150);
});

test('every block has a language that is checked, or an entry in the plan', () => {
  const known = (block: Block): boolean => isShell(block) || ['js', 'ts'].includes(block.language);
  const open = blocks.filter((block) => checkOf(block) === undefined && !known(block));
  expect(open.map(({ page, line }) => `${page}:${line}`)).toEqual([]);
});

test('JSON and YAML can be read', () => {
  for (const block of blocks) {
    const check = checkOf(block);
    if (check === undefined) continue;
    if ('json' in check) for (const line of block.text.split('\n')) expect(() => JSON.parse(line)).not.toThrow();
    if ('yaml' in check) expect(parse(block.text)).toEqual(expect.any(Object));
  }
});

test('JavaScript and TypeScript have no type errors', () => {
  const code = blocks.filter((block) => ['js', 'ts'].includes(block.language) && checkOf(block) === undefined);
  expect(code.length).toBeGreaterThan(15);
  expect(typeErrors(code)).toEqual([]);
});

/**
 * Bash reads the commands of each block, and writes down the arguments of each `capstan` in place of running it. No
 * other program runs, because the path is empty.
 */
const RECORDER = `
# One file for each call, because a command in the background runs at the same time as the next.
capstan() { builtin printf '%s\\0' "$@" > "$CALLS/$BASHPID-$((NUM_CALLS++))"; builtin printf recorded; }
npx() { "$@"; }
curl() { :; }
sleep() { :; }
command_not_found_handle() { return 0; }
for ((i = 0; i < NUM_BLOCKS; i++)); do
  CALLS=$HOME/calls-$i
  (eval "$(< "$HOME/block-$i")"; wait) > /dev/null 2> "$HOME/errors-$i"
done
`;

/** The arguments of each `capstan` of each block. */
function capstanCalls(shell: readonly Block[]): string[][][] {
  const home = temporaryFolder('blocks');
  mkdirSync(join(home, '.config/fish/completions'), { recursive: true });
  shell.forEach(({ text }, i) => {
    writeFileSync(join(home, `block-${i}`), text);
    mkdirSync(join(home, `calls-${i}`));
  });
  const env = { PATH: '', HOME: home, NUM_BLOCKS: String(shell.length) };
  expect(spawnSync('/bin/bash', ['-c', RECORDER], { cwd: home, env, stdio: 'ignore', timeout: 50_000 }).status).toBe(0);
  return shell.map(({ page, line }, i) => {
    const errors = readFileSync(join(home, `errors-${i}`), 'utf8');
    expect([page, line, /syntax error|unexpected EOF/.test(errors) ? errors : '']).toEqual([page, line, '']);
    const calls = join(home, `calls-${i}`);
    return readdirSync(calls).map((call) => readFileSync(join(calls, call), 'utf8').split('\0').slice(0, -1));
  });
}

/** Why the arguments fit no command, or undefined. Runs nothing. */
function wrongCall(program: Command, args: readonly string[]): string | undefined {
  let command = program;
  let rest = args;
  for (;;) {
    const next = command.commands.find((sub) => sub.name() === rest[0]);
    if (next === undefined) break;
    command = next;
    rest = rest.slice(1);
  }
  if (command.commands.length > 0) return `${rest[0]} is no command`;
  const { operands, unknown } = command.parseOptions(rest as string[]);
  if (unknown.length > 0) return `${unknown[0]} is no flag of ${command.name()}`;
  const { registeredArguments: known } = command;
  const isTooLong = operands.length > known.length && known.at(-1)?.variadic !== true;
  const isTooShort = operands.length < known.filter(({ required }) => required).length;
  return isTooLong || isTooShort ? `expected ${known.length} arguments, got ${operands.length}` : undefined;
}

test('shell commands have a valid syntax, and the commands and flags of capstan exist', async () => {
  const shell = blocks.filter((block) => {
    const check = checkOf(block);
    return isShell(block) && (check === undefined || 'parseOnly' in check);
  });
  const program = await buildProgram([], () => {});
  const calls = capstanCalls(shell).flatMap((found, i) => found.map((args) => ({ args, page: shell[i].page })));
  for (const { args, page } of calls) {
    const wrong = wrongCall(program, args[0] === 'serve' ? normalize(args) : args);
    expect([page, args, wrong]).toEqual([page, args, undefined]);
  }
  expect(calls.length).toBeGreaterThan(100);
});

test('the pages to run exist', () => {
  expect(SESSIONS.flatMap(({ pages }) => pages).filter((page) => !listPages().includes(page))).toEqual([]);
});
