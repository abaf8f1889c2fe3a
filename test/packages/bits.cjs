// Prints one hash per golden model and instruction set: of all log-probabilities of a prompt and its completion, bit by
// bit. Two builds compute the same bits if their lines are equal:
//
//     node test/packages/bits.cjs .
//     node test/packages/bits.cjs INSTALL_DIR/node_modules/capstan
'use strict';

const { createHash } = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const { CapstanError, Engine } = require(path.resolve(process.argv[2]));

const fixtures = path.join(__dirname, '..', 'oracle', 'fixtures');
const models = fs.readdirSync(fixtures).filter((name) => fs.existsSync(path.join(fixtures, name, 'model.safetensors')));
const ISAS = [
  'amx',
  'avx512bf16',
  'avx512vnni',
  'avx512',
  'avxvnni',
  'avx2',
  'neonbf16',
  'neondot',
  'neon',
  'portable',
];
const NUM_PROMPT_TOKENS = 100;
const NUM_TOKENS = 32;

async function hashOf(model, isa) {
  const engine = await Engine.load(model, { isa, threads: 2 });
  const hash = createHash('sha256');
  const prompt = Array.from({ length: NUM_PROMPT_TOKENS }, (_, i) => (i * 7) % 60);
  for (const temperature of [0, 1]) {
    const options = { temperature, seed: 1, maxTokens: NUM_TOKENS, ignoreEos: true, logprobs: 5, promptLogprobs: 5 };
    const { choices, promptLogprobs } = await engine.generate(prompt, options).result();
    hash.update(JSON.stringify([choices, promptLogprobs]));
  }
  await engine.close();
  return hash.digest('hex').slice(0, 16);
}

async function main() {
  for (const isa of ISAS) {
    for (const name of ['demo', ...models]) {
      try {
        console.log(`${isa} ${name} ${await hashOf(name === 'demo' ? name : path.join(fixtures, name), isa)}`);
      } catch (error) {
        if (!(error instanceof CapstanError) || !error.message.startsWith('isa: ')) throw error;
        console.log(`${isa} ${name} not available`);
      }
    }
  }
}

// A promise that never settles would end the process with status 0.
process.exitCode = 1;
void main().then(() => (process.exitCode = 0));
