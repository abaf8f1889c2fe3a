/** GGUF files that the Python package `gguf` wrote (`make_gguf.py`) give the results of transformers. */
import { readdirSync } from 'node:fs';
import path from 'node:path';

import { Engine } from '../../ts/index';
import { compareCase } from './compare';
import { listCases } from './golden';

const fixtures = path.join(__dirname, 'fixtures');
const files = readdirSync(path.join(fixtures, 'gguf')).filter((name) => !/-0000[2-9]-of-/.test(name));

test('the fixtures cover split files, paired rows, divisors, YaRN, biases and QK norms', () => {
  expect(files.map((name) => name.replace(/-00001-of-\d+/, ''))).toEqual([
    'llama31-f16.gguf',
    'qwen2-bf16.gguf',
    'qwen3-bf16.gguf',
    'yarn-f16.gguf',
  ]);
});

describe.each(files)('%s', (name) => {
  const file = path.join(fixtures, 'gguf', name);
  const [goldenCase] = listCases(path.join(fixtures, name.replace(/(-00001-of-\d+)?\.gguf$/, '')));

  test.each(['native', 'f32'] as const)('has the results of transformers (%s)', async (mode) => {
    expect((await compareCase({ ...goldenCase, directory: file }, mode)).failures).toEqual([]);
  });

  test('has the text and the greedy tokens of the model directory', async () => {
    const answers: unknown[] = [];
    for (const model of [goldenCase.directory, file]) {
      const engine = await Engine.load(model);
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
