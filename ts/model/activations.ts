import type { NativeModelSpec } from '../addon-types';
import { CapstanError } from '../errors';
import type { JsonReader } from './json-file';

/** By their names in config.json. */
export const ACTIVATIONS: Readonly<Record<string, NativeModelSpec['hiddenAct']>> = {
  silu: 'silu',
  swish: 'silu',
  gelu: 'gelu',
  gelu_python: 'gelu',
  gelu_new: 'gelu_tanh',
  gelu_pytorch_tanh: 'gelu_tanh',
  gelu_python_tanh: 'gelu_tanh',
  gelu_accurate: 'gelu_tanh',
  gelu_fast: 'gelu_tanh',
  relu: 'relu',
};

/** @throws CapstanError `unsupported_model` that names the key and the activations that run. */
export function activationOf(config: JsonReader, key: string, classDefault: string): NativeModelSpec['hiddenAct'] {
  const name = config.string(key, classDefault);
  if (Object.hasOwn(ACTIVATIONS, name)) return ACTIVATIONS[name];
  const expected = `one of ${Object.keys(ACTIVATIONS).join(', ')}`;
  throw CapstanError.mismatch('unsupported_model', `config.json: ${key}`, expected, name);
}
