import { stat } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { CapstanError } from '../errors';
import { packageRoot } from '../package-root';
import { type OpenText, openText } from '../text/text-client';
import { TokenTable } from '../text/token-table';
import { findToolCallFormat, type ToolCallFormat } from '../text/tool-calls';
import { type Checkpoint, readCheckpoint } from './checkpoint';
import { type ModelConfig, readModelConfig } from './config';
import { requiredTensors } from './families';
import { readJsonFile } from './json-file';

/** The content of a model directory, without the bytes of the weights. */
export interface Model {
  /** The name on the hub, else the directory's name, or `demo`. */
  name: string;
  config: ModelConfig;
  checkpoint: Checkpoint;
  /** Renders and tokenizes. The owner of the model closes it. */
  text: OpenText;
  tokens: TokenTable;
  /** The format in which the model writes tool calls; undefined if its chat template shows no known format. */
  toolCallFormat: ToolCallFormat | undefined;
  /** Whether reasoning is separated from the text. By default, if the chat template contains its markers. */
  hasReasoning: boolean;
}

/** Replacements for properties of the model. */
export interface ModelOverrides {
  /** Source of a chat template. */
  chatTemplate?: string | undefined;
  /** A format's name, or 'auto' (default). */
  toolCallFormat?: string;
  /** A format's name, 'none' or 'auto' (default). */
  reasoningFormat?: string;
  /** The model's name. Default: that of the directory. */
  name?: string | undefined;
}

/** The model that ships with the package. */
export const DEMO_MODEL = 'demo';

/** @throws CapstanError `invalid_model`, `unsupported_model` or `io_error` that names the file. */
export async function readModel(modelDir: string, overrides: ModelOverrides = {}): Promise<Model> {
  const dir = modelDir === DEMO_MODEL ? join(packageRoot(), 'models', 'demo') : resolve(modelDir);
  await checkDirectory(dir, modelDir);
  const { chatTemplate, toolCallFormat = 'auto', reasoningFormat = 'auto' } = overrides;
  // The tokenizer takes longest, so it loads in parallel.
  const opening = openText({ modelDir: dir, chatTemplate, toolCallFormat, reasoningFormat });
  try {
    const [{ config, checkpoint }, text] = await Promise.all([readWeights(dir), opening]);
    const { traits } = text;
    return {
      name: overrides.name ?? (modelDir === DEMO_MODEL ? DEMO_MODEL : basename(dir)),
      config,
      checkpoint,
      text,
      tokens: new TokenTable(traits.vocabulary),
      toolCallFormat:
        traits.toolCallFormat === undefined ? undefined : findToolCallFormat(traits.toolCallFormat, () => false),
      hasReasoning: traits.hasReasoning,
    };
  } catch (error) {
    await opening.then(
      (text) => text.close(),
      () => {},
    );
    throw error;
  }
}

async function checkDirectory(dir: string, modelDir: string): Promise<void> {
  const stats = await stat(dir).catch(() => undefined);
  if (stats?.isDirectory() === true) return;
  const received = stats === undefined ? 'a path that does not exist' : 'a file';
  const expected = `a directory with config.json, or '${DEMO_MODEL}'`;
  throw new CapstanError('invalid_model', `model ${JSON.stringify(modelDir)}: expected ${expected}, got ${received}`, {
    param: 'modelDir',
    expected,
    received,
  });
}

async function readWeights(dir: string): Promise<{ config: ModelConfig; checkpoint: Checkpoint }> {
  const [configJson, generationJson] = await Promise.all([
    readJsonFile(dir, 'config.json'),
    readJsonFile(dir, 'generation_config.json'),
  ]);
  if (configJson === undefined)
    throw new CapstanError('invalid_model', 'config.json: expected the file in the model directory, got none', {
      param: 'config.json',
    });
  const config = readModelConfig(configJson, generationJson);
  return { config, checkpoint: await readCheckpoint(dir, requiredTensors(config.spec, config.features)) };
}
