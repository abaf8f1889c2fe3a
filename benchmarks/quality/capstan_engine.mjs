// Capstan.   node capstan_engine.mjs MODEL [OPTIONS]
// OPTIONS: options of Engine.load as JSON, such as '{"quantization": "int4"}'. Needs `npm run build`.
import { createInterface } from 'node:readline';
import { Engine } from '../../dist/ts/index.mjs';

const NUM_TOP = 1000; // as in protocol.py
const [model, options = '{}'] = process.argv.slice(2);
const threads = Number(process.env.QUALITY_THREADS ?? 2);
const engine = await Engine.load(model, { maxModelLen: 1024, prefixCache: false, threads, ...JSON.parse(options) });
const { info } = engine;
const title = `Capstan ${info.version}, ${info.isa}, ${info.weightDtype}, quantization ${info.quantization}, compute ${info.computeDtype}, ${info.kvCacheDtype} cache`;
console.log(JSON.stringify({ engine: title, bits: (8 * info.weightBytes) / info.numParameters }));
for await (const line of createInterface({ input: process.stdin })) {
  const { promptLogprobs } = await engine
    .generate(JSON.parse(line), { maxTokens: 0, promptLogprobs: Math.min(NUM_TOP, info.vocabSize) })
    .result();
  for (const { logprob, topLogprobs } of promptLogprobs.slice(1)) {
    const count = topLogprobs.length;
    const row = new DataView(new ArrayBuffer(8 + 8 * count));
    row.setFloat32(0, logprob, true);
    row.setInt32(4, count, true);
    topLogprobs.forEach((top, i) => {
      row.setInt32(8 + 4 * i, top.tokenId, true);
      row.setFloat32(8 + 4 * (count + i), top.logprob, true);
    });
    process.stdout.write(new Uint8Array(row.buffer));
  }
}
await engine.close();
