import { fstatSync } from 'node:fs';
import type { Command } from 'commander';
import { Shutdown } from '../../base/shutdown';
import { UsageError } from '../../base/usage-error';
import { withFlagNames } from '../engine-option-flags';
import { addLocalModelFlags, loadLocalModel, type LocalModelFlags, samplingOf } from '../local-model';
import { MODEL_ARGUMENT } from '../model-argument';
import { printable } from '../terminal-style';
import { type CommandIo, PROCESS_IO } from './io';

interface Flags extends LocalModelFlags {
  prompt?: string;
  json?: boolean;
}

/** Adds `capstan run`. @param onExit Receives the exit code. */
export function addRunCommand(program: Command, onExit: (code: number) => void, io: CommandIo = PROCESS_IO): void {
  const command = program
    .command('run')
    .description('answer one prompt with a model in this process, and exit')
    .argument('[model]', MODEL_ARGUMENT)
    .option('-p, --prompt <text>', 'prompt; the text from standard input is added to it')
    .option('--json', 'print JSON: the text, reasoning, finish reason and usage')
    .addHelpText('after', HELP);
  addLocalModelFlags(command).action(async (model: string | undefined, flags: Flags) =>
    onExit(await run(model ?? 'demo', flags, io)),
  );
}

async function run(model: string, flags: Flags, io: CommandIo): Promise<number> {
  const prompt = await readPrompt(flags, io);
  const sampling = samplingOf(flags);
  const out = (text: string): void => io.out(io.isOutTerminal === true ? printable(text) : text);
  const shutdown = new Shutdown();
  const outGone = io.watchOut?.();
  const signal = outGone === undefined ? shutdown.signal : AbortSignal.any([shutdown.signal, outGone]);
  try {
    const engine = await loadLocalModel(model, flags, io.err, signal);
    try {
      const system = flags.system === undefined ? [] : [{ role: 'system' as const, content: flags.system }];
      const messages = [...system, { role: 'user' as const, content: prompt }];
      const generation = engine.chat(messages, { ...sampling, signal });
      if (flags.json !== true) {
        for await (const text of generation.textStream) out(text);
        out('\n');
        return 0;
      }
      const { choices, usage } = await generation.result();
      const [{ text, reasoning, finishReason }] = choices;
      out(`${JSON.stringify({ model: engine.info.modelName, text, reasoning, finishReason, usage })}\n`);
      return 0;
    } finally {
      await engine.close();
    }
  } catch (error) {
    // A reader that stops early, such as `head`, is not an error.
    if (outGone?.aborted === true) return 0;
    if (!shutdown.signal.aborted) throw withFlagNames(error);
    io.err('stopped\n');
    return 130;
  } finally {
    shutdown.dispose();
  }
}

/** @throws UsageError without a prompt. */
async function readPrompt({ prompt }: Flags, { readInput }: CommandIo): Promise<string> {
  const input = readInput !== undefined && hasInput() ? (await readInput()).trim() : '';
  const parts = [prompt ?? '', input].filter((part) => part !== '');
  if (parts.length === 0)
    throw new UsageError('expected a prompt: capstan run -p "Why is the sky blue?", or text on standard input');
  return parts.join('\n\n');
}

/** Standard input is a pipe or a file, not a terminal or /dev/null. */
function hasInput(): boolean {
  try {
    return !fstatSync(0).isCharacterDevice();
  } catch {
    return false;
  }
}

const HELP = `
Examples:
  capstan run -p "Why is the sky blue?"
  git diff | capstan run Qwen/Qwen3-4B -p "Write a commit message."
  capstan run demo -p "What is Capstan?" --json | jq .usage
`;
