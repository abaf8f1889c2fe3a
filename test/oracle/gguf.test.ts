/**
 * GGUF files that the Python package `gguf` wrote (`make_gguf.py`), and files of llama.cpp's converter
 * (`convert_gguf.py`), give the results of transformers.
 */
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';

import { Engine } from '../../ts/index';
import { ARCHITECTURES } from '../../ts/model/gguf/architectures';
import { readGgufFiles } from '../../ts/model/gguf/files';
import { findArchitecture } from '../../ts/model/gguf/spec';
import { JsonReader } from '../../ts/model/json-file';
import { compareCase } from './compare';
import { listCases } from './golden';

const fixtures = path.join(__dirname, 'fixtures');
const models = path.join(fixtures, 'gguf');
const files = readdirSync(models).filter((name) => name.endsWith('.gguf') && !/-0000[2-9]-of-/.test(name));
const pooling = readdirSync(path.join(models, 'embeddings')).map((name) => path.join('embeddings', name));

test('the fixtures cover each architecture, and each family that another architecture writes', async () => {
  const seen = new Set<string>();
  for (const file of [...files, ...pooling]) {
    const { metadata } = await readGgufFiles(path.join(fixtures, 'gguf', file));
    const reader = new JsonReader(metadata, file);
    const { architecture, family } = findArchitecture(reader);
    seen.add(`${architecture.name}: ${family.modelType}`);
  }
  // Mistral has the tensors of Llama and a window, as Mixtral has it here.
  const all = ARCHITECTURES.flatMap(({ name, modelType, variants = [] }) =>
    [modelType, ...variants.map((variant) => variant.modelType)].map((type) => `${name}: ${type}`),
  ).filter((pair) => pair !== 'llama: mistral');
  expect([...seen].sort()).toEqual(all.sort());
});

describe.each(files)('%s', (name) => {
  const file = path.join(fixtures, 'gguf', name);
  const caseName = name.replace(/(-00001-of-\d+)?\.gguf$/, '');
  const folders = [fixtures, path.join(fixtures, 'quantized')].map((folder) => path.join(folder, caseName));
  const [goldenCase] = listCases(folders.find((folder) => existsSync(folder))!);

  test.each(['native', 'f32'] as const)('has the results of transformers (%s)', async (mode) => {
    expect((await compareCase({ ...goldenCase, directory: file }, mode)).failures).toEqual([]);
  });

  test('has the text and the greedy tokens of the model directory', async () => {
    const answers: unknown[] = [];
    for (const model of [goldenCase.directory, file]) {
      const engine = await Engine.load(model, { threads: 1 });
      const { promptTokenIds, choices } = await engine
        .generate('The Capstan lifts 3 anchors, déjà vu\n\n  twice!', {
          temperature: 0,
          maxTokens: 16,
          ignoreEos: true,
        })
        .result();
      answers.push({ promptTokenIds, text: choices[0].text, tokenIds: choices[0].tokenIds });
      await engine.close();
    }
    expect(answers[1]).toEqual(answers[0]);
  });
});
