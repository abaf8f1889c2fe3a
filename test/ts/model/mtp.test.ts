import { readFileSync } from 'node:fs';
import path from 'node:path';
import { readModelConfig } from '../../../ts/model/config';
import type { JsonObject } from '../../../ts/model/json-file';
import { adapterModules } from '../../../ts/model/lora/modules';
import { requiredTensors } from '../../../ts/model/tensors';

const fixture = path.join(__dirname, '../../oracle/fixtures/mtp/dense/config.json');
const CONFIG = JSON.parse(readFileSync(fixture, 'utf8')) as JsonObject;

test('an MTP head is one more layer, with the names of the head', () => {
  const plain = readModelConfig(CONFIG, undefined);
  const { spec, features, family } = readModelConfig(CONFIG, undefined, { mtp: true });
  expect([plain.spec.hasMtp, spec.hasMtp]).toEqual([false, true]);
  expect(spec.layers).toEqual([...plain.spec.layers, plain.spec.layers[0]]);
  const names = requiredTensors(spec, features, family).map(({ name, checkpointName }) => [name, checkpointName]);
  expect(names).toContainEqual(['mtp.fc.weight', 'mtp.fc.weight']);
  expect(names).toContainEqual(['mtp.embedding_norm.weight', 'mtp.pre_fc_norm_embedding.weight']);
  expect(names).toContainEqual(['layers.2.q_proj.weight', 'mtp.layers.0.self_attn.q_proj.weight']);
  expect(names).toContainEqual(['layers.1.q_proj.weight', 'layers.1.self_attn.q_proj.weight']);
});

test('adapters do not change the head', () => {
  const modules = [...adapterModules(readModelConfig(CONFIG, undefined, { mtp: true })).keys()];
  expect(modules).toContain('layers.1.self_attn.q_proj');
  expect(modules.filter((name) => name.startsWith('mtp'))).toEqual([]);
});

test.each<[JsonObject, string]>([
  [{ mtp_num_hidden_layers: 0 }, 'got a model with mtp_num_hidden_layers 0'],
  [{ mtp_num_hidden_layers: 2 }, 'config.json: mtp_num_hidden_layers: expected an MTP head of 1 layer, got 2'],
  [{ mtp_use_dedicated_embeddings: true }, 'expected an MTP head with the embedding of the model, got true'],
])('%j is refused', (change, message) => {
  expect(() => readModelConfig({ ...CONFIG, ...change }, undefined, { mtp: true })).toThrow(message);
  expect(() => readModelConfig({ ...CONFIG, ...change }, undefined)).not.toThrow();
});
