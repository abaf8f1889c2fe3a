import type { Command } from 'commander';
import type { ChatOptions, EngineOptions, Engine } from '../../ts';
import { LoadProgress } from '../base/load-progress';
import { fitWarning, uncheckedWarning } from '../base/model-fit';
import { parseChoice, parseCount, parseInteger, parseNotNegative, parseShare } from './flag-values';
import { HUB_HELP, HUBS } from './model-argument';

/** Flags of the commands that run a model in their own process. */
export interface LocalModelFlags {
  hub?: string;
  device?: string;
  threads?: string;
  maxModelLen?: string;
  quantization?: string;
  system?: string;
  maxTokens?: string;
  temperature?: string;
  topP?: string;
  seed?: string;
  reasoningEffort?: string;
}

const EFFORTS = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'] as const;

export function addLocalModelFlags(command: Command): Command {
  return command
    .option('--system <text>', 'system message')
    .option('--max-tokens <tokens>', 'maximum number of tokens of an answer (default: the rest of the context)')
    .option('--temperature <number>', "sampling temperature; 0 takes the most likely token (default: the model's)")
    .option('--top-p <number>', "top-p sampling (default: the model's)")
    .option('--seed <number>', 'seed of the sampling (default: random)')
    .option('--reasoning-effort <level>', `how much the model reasons: ${EFFORTS.join(', ')} (default: the model's)`)
    .option('--hub <name>', HUB_HELP)
    .option('--device <device>', 'where to run: auto, cpu, cuda, or GPUs such as cuda:0,1 (default: auto)')
    .option('--threads <number>', 'total number of CPU threads (default: the cores that this process may use)')
    .option('--max-model-len <tokens>', "context length (default: the model's)")
    .option('--quantization <type>', 'quantize the weights at load: none, int8 or int4 (default: none)');
}

/** Sampling parameters of the flags. @throws UsageError for a value of the wrong form. */
export function samplingOf(flags: LocalModelFlags): ChatOptions {
  const { maxTokens, temperature, topP, seed, reasoningEffort } = flags;
  return {
    ...(maxTokens === undefined ? {} : { maxTokens: parseCount(maxTokens, '--max-tokens') }),
    ...(temperature === undefined ? {} : { temperature: parseNotNegative(temperature, '--temperature') }),
    ...(topP === undefined ? {} : { topP: parseShare(topP, '--top-p') }),
    ...(seed === undefined ? {} : { seed: parseInteger(seed, '--seed', 0) }),
    ...(reasoningEffort === undefined
      ? {}
      : { reasoningEffort: parseChoice(reasoningEffort, '--reasoning-effort', EFFORTS) }),
  };
}

/** Loads the model of a command, and shows the progress. @param err Writes to standard error. */
export async function loadLocalModel(
  model: string,
  flags: LocalModelFlags,
  err: (text: string) => void,
  signal: AbortSignal,
): Promise<Engine> {
  const { hub, device, threads, maxModelLen, quantization } = flags;
  const options: EngineOptions = {
    ...(hub === undefined ? {} : { hub: parseChoice(hub, '--hub', HUBS) }),
    ...(device === undefined ? {} : { device: device as NonNullable<EngineOptions['device']> }),
    ...(threads === undefined ? {} : { threads: parseCount(threads, '--threads') }),
    ...(maxModelLen === undefined ? {} : { maxModelLen: parseCount(maxModelLen, '--max-model-len') }),
    ...(quantization === undefined
      ? {}
      : { quantization: parseChoice(quantization, '--quantization', ['none', 'int8', 'int4']) }),
  };
  const { Engine } = await import('../../ts/index.js');
  const progress = new LoadProgress((text) => err(`${text}\n`));
  try {
    return await Engine.load(model, {
      ...options,
      maxNumSeqs: 1,
      signal,
      onProgress: (done) => progress.update(done),
      onDownload: (info) => {
        for (const text of [fitWarning(info), uncheckedWarning(info)])
          if (text !== undefined) err(`warning: ${text}\n`);
      },
    });
  } finally {
    progress.end();
  }
}
