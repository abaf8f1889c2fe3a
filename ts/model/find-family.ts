import { CapstanError, showPlace } from '../errors';
import { LAST_CLASSIFIER, MEAN } from './encoders';
import { FAMILIES } from './families';
import type { Family } from './family';
import type { JsonObject, JsonReader } from './json-file';

/** Families that are not supported yet, by the start of their model type. */
const LATER_FAMILIES: readonly [prefix: string, description: string][] = [
  ['cohere2_moe', 'experts beside attention'],
  ['gemma3n', 'per-layer inputs'],
  ['qwen3_vl_moe', 'another text model with images'],
  ['deepseek', 'multi-head latent attention'],
  ['phi', 'Phi before Phi-3, or its mixture of experts'],
];

/** Models of text with images. Only the text part runs. The value is its row if its config names none. */
const OUTER_MODELS: Readonly<Record<string, string>> = {
  Gemma3ForConditionalGeneration: 'gemma3_text',
  Gemma4ForConditionalGeneration: 'gemma4_text',
  AyaVisionForConditionalGeneration: 'cohere2',
  Cohere2VisionForConditionalGeneration: 'cohere2',
  InternVLForConditionalGeneration: 'qwen2',
  Lfm2VlForConditionalGeneration: 'lfm2',
  LlavaForConditionalGeneration: 'llama',
  LlavaNextForConditionalGeneration: 'llama',
  Mistral3ForConditionalGeneration: 'mistral',
  Qwen2VLForConditionalGeneration: 'qwen2_vl_text',
  Qwen2_5_VLForConditionalGeneration: 'qwen2_5_vl_text',
  Qwen3VLForConditionalGeneration: 'qwen3_vl_text',
  Qwen3_5ForConditionalGeneration: 'qwen3_5_text',
  Qwen3_5MoeForConditionalGeneration: 'qwen3_5_moe_text',
};

/** Keys of the outer config that hold for the text part too. */
const OUTER_KEYS = ['quantization_config', 'compression_config', 'eos_token_id', 'torch_dtype', 'dtype'];

/** Returns the config of the text model, which is a part of the config of a model of text with images. */
export function textConfig(config: JsonObject): JsonObject {
  const architecture = Array.isArray(config.architectures) ? String(config.architectures[0]) : '';
  if (!Object.hasOwn(OUTER_MODELS, architecture)) return config;
  const text = config.text_config ?? flatTextConfig(config);
  if (typeof text !== 'object' || text === null || Array.isArray(text)) return config;
  const { model_type: modelType = OUTER_MODELS[architecture] } = text as JsonObject;
  const family = FAMILIES.find((row) => row.modelType === modelType);
  if (family === undefined) return config;
  const { tie_word_embeddings = (text as JsonObject).tie_word_embeddings } = config;
  // The part may hold null for a key that only the outer config has a value for.
  const isOuter = (key: string): boolean => config[key] !== undefined && ((text as JsonObject)[key] ?? null) === null;
  const outer = OUTER_KEYS.filter(isOuter).map((key) => [key, config[key]]);
  return {
    ...text,
    ...(Object.fromEntries(outer) as JsonObject),
    model_type: modelType,
    architectures: [family.architecture],
    ...(tie_word_embeddings === undefined ? {} : { tie_word_embeddings }),
  };
}

/** The first configs of Qwen2.5-VL have the keys of the text model beside those of the whole. */
function flatTextConfig({ model_type: _type, ...config }: JsonObject): JsonObject | undefined {
  return config.hidden_size === undefined ? undefined : config;
}

/** @throws CapstanError `unsupported_model` that names the architecture and the supported ones. */
export function findFamily(config: JsonReader): Family {
  const modelType = config.string('model_type', '');
  const architectures = config.raw('architectures');
  const architecture = Array.isArray(architectures) && architectures.length > 0 ? String(architectures[0]) : undefined;
  const rows = FAMILIES.filter((row) =>
    modelType === '' ? row.architecture === architecture : row.modelType === modelType,
  );
  const family =
    rows.find((row) => row.isFor?.(config)) ??
    rows.find((row) => row.architecture === architecture && row.isFor === undefined) ??
    rows.at(0);
  const name = architecture ?? (modelType === '' ? 'a model without model_type and architectures' : modelType);
  if (family === undefined) {
    const later = LATER_FAMILIES.find(([prefix]) => modelType.startsWith(prefix));
    throw unsupported(later === undefined ? name : `${name} (${later[1]}, not supported yet)`);
  }
  if (architecture !== undefined && isClassifierOf(architecture, family))
    return { ...family, pooling: LAST_CLASSIFIER };
  // Refuse other heads, such as those of reward models.
  const isBase = architecture !== undefined && hasKnownBody(architecture, family);
  if (architecture !== undefined && architecture !== family.architecture && !isBase) throw unsupported(name);
  const bidirectional = config.raw('use_bidirectional_attention');
  if ((bidirectional === true || bidirectional === 'all') && !family.isEncoder)
    throw config.mismatch('use_bidirectional_attention', 'false (a model that generates text)', bidirectional);
  return config.raw('is_causal') === false && !family.isEncoder ? bidirectionalFamily(family) : family;
}

/** A decoder that was trained further as an encoder, such as gte-Qwen2: its tokens see each other. */
function bidirectionalFamily(family: Family): Family {
  const expected = 'true for a model with sliding windows, experts or recurrent layers';
  return {
    ...family,
    isEncoder: true,
    attention: (config, numLayers) => {
      const layers = family.attention(config, numLayers);
      if (family.moe !== undefined || family.recurrent !== undefined || layers.some(({ window }) => window > 0))
        throw CapstanError.mismatch('unsupported_model', 'config.json: is_causal', expected, false);
      return layers;
    },
    changes: (config, sizes) => ({ ...family.changes?.(config, sizes), isCausal: false }),
    pooling: MEAN,
  };
}

/** A classifier made of a decoder, such as Qwen3ForSequenceClassification. */
function isClassifierOf(architecture: string, { architecture: own, pooling }: Family): boolean {
  const name = own.replace(/ForCausalLM$/, '');
  const names = ['ForSequenceClassification', 'TextForSequenceClassification'].map((ending) => name + ending);
  return pooling === undefined && names.includes(architecture);
}

/** The head of a language model is not part of an encoder's embeddings. */
function hasKnownBody(architecture: string, { isEncoder }: Family): boolean {
  return (
    /(?<!Reward)Model$/.test(architecture) || (isEncoder === true && /For(MaskedLM|PreTraining)$/.test(architecture))
  );
}

/** Returns the family of a model type that is in the table. Default: the first architecture of that type. */
export function familyOf(modelType: string, architecture?: string): Family {
  return FAMILIES.find(
    (row) => row.modelType === modelType && (architecture === undefined || row.architecture === architecture),
  )!;
}

function unsupported(received: string): CapstanError {
  const expected = FAMILIES.map((row) => row.architecture).join(', ');
  const shown = showPlace(received);
  return new CapstanError(
    'unsupported_model',
    `config.json: expected one of the architectures ${expected}, got ${shown}`,
    { param: 'architectures', expected, received: shown },
  );
}
