import type { EngineOptions } from '../../../ts';
import type { ServerSettings } from '../settings';

/** One of several models that a server has, with options that differ from model to model. */
export interface ModelOptions {
  /** GGUF file, model directory, name on the hub, or `demo`. */
  model: string;
  /** The first name in requests. Undefined: the name on the hub, or of the directory or GGUF file. */
  name: string | undefined;
  aliases: string[];
  engine: EngineOptions;
  settings: ServerSettings;
  /** Loaded at the start. */
  isPreloaded: boolean;
  /** Loaded at the start, and unloaded only at the end. */
  isPinned: boolean;
}

/** Limits of the models in memory. */
export interface ModelLimits {
  /** Undefined: {@link DEFAULT_MEMORY_SHARE} of what this process can allocate at the start. */
  memoryBytes: number | undefined;
  /** Infinity: no limit. */
  maxLoaded: number;
  /** Infinity: models stay loaded. */
  idleMs: number;
  waitTimeoutMs: number;
}

export const DEFAULT_MEMORY_SHARE = 0.8;

export const DEFAULT_MODEL_LIMITS: ModelLimits = {
  memoryBytes: undefined,
  maxLoaded: Infinity,
  idleMs: Infinity,
  waitTimeoutMs: 300_000,
};
