import type { Command } from 'commander';
import { CapstanError, type QuantizeOptions } from '../../../ts';
import { formatBytes } from '../../base/bytes';
import { LoadProgress } from '../../base/load-progress';
import { Shutdown } from '../../base/shutdown';
import { UsageError } from '../../base/usage-error';
import { counted } from '../../base/words';
import { parseBytes, parseChoice } from '../flag-values';
import { HUB_HELP, HUBS } from '../model-argument';
import { type CommandIo, PROCESS_IO } from './io';

interface Flags {
  out?: string;
  quantization?: string;
  groupSize?: string;
  maxShardSize?: string;
  hub?: string;
}

const GROUP_SIZES = ['16', '32', '64', '128'] as const;

/** Adds `capstan quantize`. @param onExit Receives the exit code. */
export function addQuantizeCommand(program: Command, onExit: (code: number) => void, io: CommandIo = PROCESS_IO): void {
  program
    .command('quantize')
    .description('write a quantized copy of a model, which transformers reads too')
    .argument(
      '<model>',
      "model directory in Hugging Face's layout, name on the hub (ORG/NAME[@revision]), or demo, the embedded model",
    )
    .option('--out <folder>', 'folder to write, which is empty or does not exist (required)')
    .option('--quantization <type>', 'int8, or int4: the embedding and the LM head keep 8 bits (default: int8)')
    .option(
      '--group-size <columns>',
      'weights of a row that share a scale: 16, 32, 64 or 128 (default: 128 for 8 bits, 64 for 4)',
    )
    .option('--max-shard-size <bytes>', 'largest file of weights, such as 2G (default: 4,000,000,000 bytes)')
    .option('--hub <name>', HUB_HELP)
    .addHelpText('after', HELP)
    .action(async (model: string, flags: Flags) => onExit(await run(model, flags, io)));
}

/** Prints the path to standard output, and everything else to standard error. Returns the exit code. */
async function run(model: string, flags: Flags, io: CommandIo): Promise<number> {
  if (flags.out === undefined) throw new UsageError('--out: expected the folder to write, such as --out ./model-int8');
  const options = parseFlags(flags);
  const { quantize } = await import('../../../ts/index.js');
  const shutdown = new Shutdown();
  const progress = new LoadProgress((text) => io.err(`${text}\n`));
  try {
    const { path, numMatrices, sourceBytes, weightBytes } = await quantize(model, flags.out, {
      ...options,
      signal: shutdown.signal,
      onProgress: (done) => progress.update(done),
      onDownload: ({ repository, files, totalBytes }) =>
        io.err(`downloading ${repository}: ${counted(files.length, 'file')}, ${formatBytes(totalBytes)}\n`),
    });
    progress.end();
    const count = `${numMatrices} ${numMatrices === 1 ? 'matrix' : 'matrices'}`;
    io.err(`quantized ${count}: ${formatBytes(sourceBytes)} became ${formatBytes(weightBytes)}\n`);
    io.out(`${path}\n`);
    return 0;
  } catch (error) {
    progress.end();
    if (!(error instanceof CapstanError && error.code === 'aborted')) throw error;
    io.err('stopped. Nothing was written\n');
    return 130;
  } finally {
    shutdown.dispose();
  }
}

function parseFlags({ quantization, groupSize, maxShardSize, hub }: Flags): QuantizeOptions {
  return {
    ...(quantization === undefined
      ? {}
      : { quantization: parseChoice(quantization, '--quantization', ['int8', 'int4']) }),
    ...(groupSize === undefined
      ? {}
      : {
          groupSize: Number(parseChoice(groupSize, '--group-size', GROUP_SIZES)) as NonNullable<
            QuantizeOptions['groupSize']
          >,
        }),
    ...(maxShardSize === undefined ? {} : { maxShardBytes: parseBytes(maxShardSize, '--max-shard-size') }),
    ...(hub === undefined ? {} : { hub: parseChoice(hub, '--hub', HUBS) }),
  };
}

const HELP = `
Writes config.json, the tokenizer and chat templates, and the weights in the
format pack-quantized of compressed-tensors. The folder appears when it is
complete. Ctrl-C removes what was written.

capstan serve FOLDER gives the same tokens as capstan serve MODEL with the same
--quantization and --dtype, and reads less from the disk. Refuses GGUF files and
models that are quantized already.

Examples:
  capstan quantize Qwen/Qwen2.5-0.5B-Instruct --out ./qwen-int8
  capstan quantize ./model --out ./model-int4 --quantization int4 --group-size 32
`;
