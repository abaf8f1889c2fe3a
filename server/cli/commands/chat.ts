import type { Command } from 'commander';
import { Shutdown } from '../../base/shutdown';
import { withFlagNames } from '../engine-option-flags';
import { addLocalModelFlags, loadLocalModel, type LocalModelFlags, samplingOf } from '../local-model';
import { MODEL_ARGUMENT } from '../model-argument';
import { PROCESS_IO } from './io';

/** Adds `capstan chat`. @param onExit Receives the exit code. */
export function addChatCommand(program: Command, onExit: (code: number) => void): void {
  const command = program
    .command('chat')
    .description('talk to a model in this terminal')
    .argument('[model]', MODEL_ARGUMENT)
    .option('--load <file>', 'continue a conversation that /save wrote')
    .addHelpText('after', HELP);
  addLocalModelFlags(command).action(async (model: string | undefined, flags: LocalModelFlags & { load?: string }) =>
    onExit(await chat(model ?? 'demo', flags)),
  );
}

async function chat(model: string, flags: LocalModelFlags & { load?: string }): Promise<number> {
  const { ChatLoop, readConversation } = await import('../chat-loop.js');
  const options = samplingOf(flags);
  const messages = flags.load === undefined ? undefined : readConversation(flags.load);
  const shutdown = new Shutdown();
  let engine;
  try {
    engine = await loadLocalModel(model, flags, PROCESS_IO.err, shutdown.signal);
  } catch (error) {
    if (shutdown.signal.aborted) return 130;
    throw withFlagNames(error);
  } finally {
    // From here on Ctrl-C stops an answer.
    shutdown.dispose();
  }
  try {
    const { system } = flags;
    return await new ChatLoop(engine, { ...options, system, messages }).run(process.stdin, process.stdout);
  } finally {
    await engine.close();
  }
}

const HELP = `
In the chat, /help lists the commands. Ctrl-C stops an answer, Ctrl-D leaves.
If standard input is not a terminal, each of its lines is a message.

Examples:
  capstan chat
  capstan chat Qwen/Qwen3-4B --system "Answer in one sentence."
  printf 'Hello!\\nWhat is Capstan?\\n' | capstan chat
`;
