// Capstan through its public interface.
//   node capstan_peer.mjs [--quantization none|int8|int4] MODEL [ENTRY]
// ENTRY: the library's module, such as /tmp/i/node_modules/capstan/dist/ts/index.mjs (default: the one of this tree)
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';

const { values, positionals } = parseArgs({ options: { quantization: { type: 'string' } }, allowPositionals: true });
const [model, entry = '../../dist/ts/index.mjs'] = positionals;
const { Engine } = await import(entry);

const numThreads = Number(process.env.PEER_THREADS ?? 2);
/** Returns milliseconds of wall time, or of CPU time of the process. */
const clock = () =>
  process.env.PEER_CLOCK === 'cpu' ? (process.cpuUsage().user + process.cpuUsage().system) / 1000 : performance.now();
const engine = await Engine.load(model, {
  dtype: 'bf16',
  quantization: values.quantization ?? 'none',
  threads: numThreads,
  pinThreads: numThreads > 1,
  maxModelLen: 4096,
  maxNumSeqs: 8,
  maxNumBatchedTokens: 512,
});

/** Returns the same ids as `prompt` in protocol.py. */
function prompt(seed, count) {
  let state = (BigInt(seed) * 2654435761n) % 4294967296n;
  return Array.from({ length: count }, () => {
    state = (state * 1664525n + 1013904223n) % 4294967296n;
    return 1000 + Number((state >> 8n) % 140000n);
  });
}

/** Measures tokens per second while all streams decode, from the moment that every stream has its first token. */
async function decode(seed, streams, start, tokens) {
  // Those that begin first generate while the other prompts are computed, some tokens in each step.
  const limit = tokens + 1024;
  const counts = new Array(streams).fill(0);
  let begin, end, atBegin;
  const run = async (index) => {
    const call = engine.generate(prompt(seed + index, start), {
      maxTokens: limit,
      minTokens: limit,
      temperature: 0,
      ignoreEos: true,
    });
    for await (const event of call) {
      if (event.type !== 'delta') continue;
      counts[index] += event.tokenIds.length;
      const total = counts.reduce((a, b) => a + b, 0);
      if (begin === undefined && counts.every((count) => count > 0)) [begin, atBegin] = [clock(), total];
      if (begin !== undefined && end === undefined && total - atBegin >= streams * tokens) end = { at: clock(), total };
      if (end !== undefined) break;
    }
  };
  await Promise.all(counts.map((_, index) => run(index)));
  return ((end.total - atBegin) / (end.at - begin)) * 1000;
}

async function prefill(seed, tokens) {
  const begin = clock();
  await engine.generate(prompt(seed, tokens), { maxTokens: 1, temperature: 0, ignoreEos: true }).result();
  return (tokens / (clock() - begin)) * 1000;
}

console.log(
  JSON.stringify({
    peer: `Capstan ${engine.info.version}, ${engine.info.isa}, bf16, quantization ${engine.info.quantization}`,
  }),
);
let seed = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const task = JSON.parse(line);
  seed += 1000;
  const speed =
    task.op === 'decode'
      ? await decode(seed, task.streams, task.context, task.tokens)
      : await prefill(seed, task.tokens);
  console.log(JSON.stringify({ tokens_per_s: speed }));
}
await engine.close();
