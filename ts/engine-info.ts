import type { NativeEngineInfo, NativeStats } from './addon-types';
import type { ModelTask } from './pooling';
import type { SamplingDefaults } from './sampling';

/** The loaded model and the resolved options of an engine. */
export interface EngineInfo extends NativeEngineInfo {
  /** Version of the native addon. */
  version: string;
  /** What the model does. */
  task: ModelTask;
  /** Number of values of an embedding. Only with the task `embed`. */
  embeddingSize?: number;
  /** Names of the model's prompts, such as `query` and `document`. Only with the task `embed`. */
  promptNames?: readonly string[];
  /** Name on the hub (`ORG/NAME`), else of the model directory or GGUF file, or `demo`. */
  modelName: string;
  /** Architecture as `config.json` names it, such as `LlamaForCausalLM`. */
  architecture: string;
  /** Number of weights. */
  numParameters: number;
  /** Number of token ids, from 0. */
  vocabSize: number;
  /**
   * Token ids that end a completion: the union of `generation_config.json`, `config.json` and the EOS token of the
   * tokenizer.
   */
  eosTokenIds: number[];
  /** Defaults of `generation_config.json`, overridden by `generationConfigOverrides`. */
  samplingDefaults: SamplingDefaults;
  /** Name of the format in which tool calls are parsed, or null if they stay in the text. */
  toolCallFormat: string | null;
  /** Name of the format in which reasoning is parsed, or null if it stays in the text. */
  reasoningFormat: string | null;
  /** Whether the prefix cache is enabled. */
  prefixCache: boolean;
}

/** Counters and gauges of an engine since it was loaded. */
export interface EngineStats extends NativeStats {
  /** Share of all prompt tokens that were found in the prefix cache, 0 to 1. */
  prefixCacheHitRate: number;
}
