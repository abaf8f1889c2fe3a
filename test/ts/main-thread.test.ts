/** Loading a large tokenizer and tokenizing a long text take little time of the main thread. */
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { prepare } from '../fakes/server-process';
import { safetensors, TINY_CONFIG, tinyModel, tinyTensors, tinyTokenizer } from '../fakes/tiny-model';

const NUM_TOKENS = 150_000;

/** Prints the processor time of the main thread for each piece of work, in milliseconds. */
const SCRIPT = `
const { readFileSync } = require('node:fs');
const { Engine } = require(process.argv[1]);
const now = () => Number(readFileSync('/proc/self/task/' + process.pid + '/schedstat', 'utf8').split(' ')[0]) / 1e6;
const measure = async (work) => {
  const begin = now();
  await work();
  return now() - begin;
};
(async () => {
  // Compiles the code.
  await (await Engine.load(process.argv[2])).close();
  let engine;
  const loadMs = await measure(async () => (engine = await Engine.load(process.argv[3])));
  const text = 'Some words of a text. '.repeat(50_000);
  await engine.tokenize('warm up');
  const tokenizeMs = await measure(() => engine.tokenize(text));
  const chatMs = await measure(() => engine.renderChat([{ role: 'user', content: text }]));
  await engine.close();
  console.log(JSON.stringify({ loadMs, tokenizeMs, chatMs }));
})();
`;

function largeTokenizer(): Record<string, unknown> {
  const tokenizer = tinyTokenizer() as { added_tokens: { id: number }[]; model: { vocab: Record<string, number> } };
  const first = 256 + tokenizer.added_tokens.length;
  for (let id = first; id < NUM_TOKENS; id++) tokenizer.model.vocab[`token${id}`] = id;
  return tokenizer;
}

test('in milliseconds of processor time', () => {
  const { CAPSTAN_ADDON } = prepare();
  const large = tinyModel({
    'config.json': { ...TINY_CONFIG, vocab_size: NUM_TOKENS },
    'tokenizer.json': largeTokenizer(),
    'model.safetensors': safetensors({
      ...tinyTensors(),
      'model.embed_tokens.weight': { dtype: 'F32', shape: [NUM_TOKENS, TINY_CONFIG.hidden_size] },
    }),
  });
  const library = join(__dirname, '../../dist/ts/index.js');
  const output = execFileSync(process.execPath, ['-e', SCRIPT, library, tinyModel(), large], {
    env: { ...process.env, CAPSTAN_ADDON },
    encoding: 'utf8',
  });
  const { loadMs, tokenizeMs, chatMs } = JSON.parse(output) as Record<string, number>;
  expect(loadMs).toBeLessThan(100);
  expect(tokenizeMs).toBeLessThan(30);
  expect(chatMs).toBeLessThan(30);
});
