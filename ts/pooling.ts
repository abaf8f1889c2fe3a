import { CapstanError } from './errors';

/** What a model does: write text, turn texts into vectors, or score pairs of texts. */
export type ModelTask = 'generate' | 'embed' | 'score';

/** Options of {@link Engine.score} and {@link Engine.rerank}, and common ones of {@link Engine.embed}. */
export interface PoolingOptions {
  /** Aborting it ends the call with code `aborted`. */
  signal?: AbortSignal;
  /** Partition of the prefix cache. Calls share cached inputs only with calls of the same salt. Default: `''`. */
  cacheSalt?: string;
  /** Names the call in logs. Default: none. */
  requestId?: string;
  /** Lower numbers are served first; above 0 is background work, as in `CallContext`. Default: 0. */
  priority?: number;
  /**
   * Cuts off the end of longer inputs. -1: the maximum length that the model takes. Default: a longer input is refused
   * with `context_length_exceeded`.
   */
  truncatePromptTokens?: number;
  /**
   * Receives the tokens of each input when its computation starts. Their sum is what a call that fails or is aborted
   * has used. An error that it throws ends the call.
   */
  onTokens?: (numTokens: number) => void;
}

/** Options of {@link Engine.embed}. */
export interface EmbedOptions extends PoolingOptions {
  /** Number of leading values to keep (matryoshka), 1 to `embeddingSize`. Default: all. */
  dimensions?: number;
  /** Divides each embedding by its length, after `dimensions`. Default: what the model's files say, else true. */
  normalize?: boolean;
  /** Name of one of the model's prompts, which is put before each input text. Default: what the model's files say. */
  promptName?: string;
}

/** Tokens of all inputs of a call. */
export interface PoolingUsage {
  /** Tokens of the inputs, cached ones included. */
  promptTokens: number;
  /** Those found in the prefix cache. */
  cachedTokens: number;
}

/** Result of {@link Engine.embed}. */
export interface EmbedResult {
  /** One per input, in order. */
  embeddings: Float32Array[];
  /** Tokens of the call. */
  usage: PoolingUsage;
}

/** Result of {@link Engine.score} and {@link Engine.rerank}. */
export interface ScoreResult {
  /** One per pair or document, in order. */
  scores: number[];
  /** Tokens of the call. */
  usage: PoolingUsage;
}

const METHODS: Readonly<Record<ModelTask, string>> = {
  generate: 'generate() and chat()',
  embed: 'embed(), score() and rerank()',
  score: 'score() and rerank()',
};

/** Returns the error of a call that the model's task does not answer. */
export function unsupportedTask(method: string, task: ModelTask): CapstanError {
  return new CapstanError(
    'unsupported_task',
    `${method}: this engine has the task '${task}', which answers ${METHODS[task]}. Load another model, or this one ` +
      'with another task',
    { param: 'task', expected: METHODS[task], received: method },
  );
}
