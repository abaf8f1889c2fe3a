import type { NativeModelSpec } from '../addon-types';
import { CapstanError } from '../errors';
import type { Family } from './family';
import type { JsonReader } from './json-file';

/** Module of the head's layer in the checkpoint. */
export const MTP_LAYER = 'mtp.layers.0';

/** Names in the checkpoint, by canonical name. */
export const MTP_NAMES = {
  fc: 'mtp.fc',
  embedding_norm: 'mtp.pre_fc_norm_embedding',
  hidden_norm: 'mtp.pre_fc_norm_hidden',
  norm: 'mtp.norm',
} as const;

/** Keys of config.json with the number of the head's layers. */
const COUNTS = ['mtp_num_hidden_layers', 'num_nextn_predict_layers'];

/**
 * Returns the spec of a model with its MTP head (multi-token prediction), whose layer is the last one.
 * @throws CapstanError `invalid_argument` for a model without, or `unsupported_model` for a head of another kind.
 */
export function withMtpHead(spec: NativeModelSpec, config: JsonReader, family: Family): NativeModelSpec {
  if (!family.hasMtpHead) throw noMtpHead(`a model of the architecture ${family.architecture}`);
  const key = COUNTS.find((name) => config.raw(name) !== undefined) ?? COUNTS[0];
  const numLayers = config.nonNegativeInt(key, 1);
  if (numLayers === 0) throw noMtpHead(`a model with ${key} 0`);
  if (numLayers > 1)
    throw CapstanError.mismatch('unsupported_model', `config.json: ${key}`, 'an MTP head of 1 layer', numLayers);
  if (config.boolean('mtp_use_dedicated_embeddings', false))
    throw CapstanError.mismatch(
      'unsupported_model',
      'config.json: mtp_use_dedicated_embeddings',
      'an MTP head with the embedding of the model',
      true,
    );
  const isMoe = family.moe?.(config, spec.hiddenSize).layers(0) ?? false;
  return { ...spec, layers: [...spec.layers, { mixer: 'attention', window: 0, rope: 0, isMoe }], hasMtp: true };
}

/** Returns the error of a model that has no MTP head. */
export function noMtpHead(received: string): CapstanError {
  return CapstanError.unexpected(
    'invalid_argument',
    'speculative.method',
    "'ngram', or 'mtp' with a checkpoint of Qwen3.5 or Qwen3-Next that holds its MTP head (tensors mtp.*)",
    received,
  );
}
