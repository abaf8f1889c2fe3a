import type { CapstanError } from '../../errors';
import { type JsonObject, JsonReader } from '../json-file';
import type { GgufArchitecture, GgufLayers, GgufSizes } from './architectures';

/** Keys of GGUF that hold an entry of config.json, which is what the families of `ts/model/families.ts` read. */
const KEYS: Readonly<Record<string, string>> = {
  sliding_window: 'attention.sliding_window',
  attn_logit_softcapping: 'attn_logit_softcapping',
  final_logit_softcapping: 'final_logit_softcapping',
  embedding_multiplier: 'embedding_scale',
  residual_multiplier: 'residual_scale',
  attention_multiplier: 'attention.scale',
  logits_scaling: 'logit_scale',
  num_experts: 'expert_count',
  num_local_experts: 'expert_count',
  num_experts_per_tok: 'expert_used_count',
  norm_topk_prob: 'expert_weights_norm',
  layer_types: 'attention.sliding_window_pattern',
};
/** Which layers are recurrent. */
const RECURRENT_LAYERS = 'attention.recurrent_layers';

/** The metadata of a GGUF file as config.json would have them. Errors name the keys of the file. */
export class GgufConfig extends JsonReader {
  /** Which layers have the window, if the file says so. */
  readonly isSliding: readonly boolean[] | undefined;
  readonly #prefix: string;

  constructor(
    metadata: JsonReader,
    architecture: GgufArchitecture,
    { sizes, layers }: { sizes: GgufSizes; layers: GgufLayers },
  ) {
    const entries: JsonObject = { sliding_window: null, use_sliding_window: true, max_window_layers: 0 };
    Object.assign(entries, architecture.config?.(sizes, layers, metadata));
    for (const [key, name] of Object.entries({ ...KEYS, ...architecture.entries })) {
      const value = metadata.raw(`${architecture.name}.${name}`);
      // 0 stands for "none".
      if (value !== undefined && key !== 'layer_types') entries[key] = value === 0 ? null : value;
    }
    const pattern = `${architecture.name}.${KEYS.layer_types}`;
    const isPeriodOfFamily = architecture.readsPattern === true && typeof metadata.raw(pattern) === 'number';
    const isSliding = isPeriodOfFamily ? undefined : readPattern(metadata, pattern, sizes);
    const isRecurrent = readFlags(metadata, `${architecture.name}.${RECURRENT_LAYERS}`, sizes);
    if (isSliding !== undefined)
      entries.layer_types = isSliding.map((sliding) => (sliding ? 'sliding_attention' : 'full_attention'));
    if (isRecurrent !== undefined)
      entries.layer_types = isRecurrent.map((recurrent) => (recurrent ? 'linear_attention' : 'full_attention'));
    super(entries, metadata.where);
    this.isSliding = architecture.readsPattern === true ? undefined : isSliding;
    this.#prefix = architecture.name;
  }

  override mismatch(key: string, expected: string, received: unknown): CapstanError {
    return super.mismatch(Object.hasOwn(KEYS, key) ? `${this.#prefix}.${KEYS[key]}` : key, expected, received);
  }
}

/**
 * Returns which layers have the window: a list of booleans, or a number n for all but every n-th layer. undefined: the
 * architecture decides.
 */
function readPattern(metadata: JsonReader, key: string, sizes: GgufSizes): boolean[] | undefined {
  if (typeof metadata.raw(key) === 'number') {
    const period = metadata.positiveInt(key);
    return Array.from({ length: sizes.numLayers }, (_, layer) => (layer + 1) % period !== 0);
  }
  return readFlags(metadata, key, sizes);
}

/** Returns one value for each layer. */
function readFlags(metadata: JsonReader, key: string, { numLayers, numBlocks }: GgufSizes): boolean[] | undefined {
  const flags = metadata.raw(key);
  if (flags === undefined) return undefined;
  const isList = Array.isArray(flags) && flags.length === numBlocks;
  if (!isList || !flags.every((value) => typeof value === 'boolean'))
    throw metadata.mismatch(key, `${numBlocks} values of true or false`, flags);
  return flags.slice(0, numLayers);
}
