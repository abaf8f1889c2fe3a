// Measures the prefix cache on disk: the time to the first token of a prompt that is computed, and of the same prompt
// after the engine was closed and loaded again. Both answers must have the same bits.
//   node -r ./test/oracle/register-ts.cjs benchmarks/disk-cache.ts MODEL_DIR [--tokens 8192] [--rounds 3]
//     [--out FILE.md]
// MODEL_DIR is the 0.5 B model of benchmarks/peers/make_model.py, or demo.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { Engine } from '../ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    tokens: { type: 'string', default: '8192' },
    rounds: { type: 'string', default: '3' },
    out: { type: 'string' },
  },
});
const model = positionals[0] ?? 'demo';
const [numTokens, rounds] = [values.tokens, values.rounds].map(Number);
const prefixCacheDir = mkdtempSync(join(os.tmpdir(), 'capstan-disk-cache-'));
const prompt = Array.from({ length: numTokens }, (_, i) => (i * 7919 + 13) % 1000);

interface Run {
  loadMs: number;
  firstTokenMs: number;
  cachedTokens: number;
  answer: string;
  info: Engine['info'];
  stats: ReturnType<Engine['stats']>;
}

async function run(): Promise<Run> {
  const begin = performance.now();
  const engine = await Engine.load(model, { prefixCacheDir, maxModelLen: numTokens + 16 });
  const loaded = performance.now();
  let first = 0;
  const generation = engine.generate(prompt, { maxTokens: 8, temperature: 0, logprobs: 5, ignoreEos: true });
  for await (const event of generation) if (event.type === 'delta' && first === 0) first = performance.now();
  const { choices, usage } = await generation.result();
  while (engine.stats().numDiskBlocks < Math.floor((numTokens - 1) / engine.info.blockSize))
    await new Promise((resolve) => setTimeout(resolve, 10));
  const { info } = engine;
  const stats = engine.stats();
  await engine.close();
  const answer = JSON.stringify(choices.map(({ tokenIds, logprobs }) => [tokenIds, logprobs]));
  return {
    loadMs: loaded - begin,
    firstTokenMs: first - loaded,
    cachedTokens: usage.cachedTokens,
    answer,
    info,
    stats,
  };
}

/** Writes what is cached of the folder to the disk, and forgets it. Needs root. */
function dropPageCache(): boolean {
  try {
    execFileSync('sync');
    writeFileSync('/proc/sys/vm/drop_caches', '1');
    return true;
  } catch {
    return false;
  }
}

function row(name: string, { loadMs, firstTokenMs, cachedTokens, stats }: Run, cold: Run): string {
  const megabytes = (stats.diskBytesRead + stats.diskBytesWritten) / 1e6;
  return `| ${name} | ${(loadMs / 1000).toFixed(1)} s | ${firstTokenMs.toFixed(0)} ms | ${((100 * firstTokenMs) / cold.firstTokenMs).toFixed(2)} % | ${cachedTokens} | ${megabytes.toFixed(0)} MB |`;
}

async function main(): Promise<void> {
  const cold = await run();
  const rows = [row('computed, and written', cold, cold)];
  for (let round = 0; round < rounds; round++) {
    const isDropped = round === rounds - 1 && dropPageCache();
    const warm = await run();
    if (warm.answer !== cold.answer) throw new Error('the answers differ');
    rows.push(row(isDropped ? 'from the disk' : 'from the page cache', warm, cold));
  }
  const { backend, isa, threads } = cold.info;
  const report = [
    `${model}, ${backend} ${isa}, ${threads} threads, ${os.cpus()[0]?.model.trim()}, ${new Date().toISOString().slice(0, 10)}; a prompt of ${numTokens} tokens. All answers have the same bits.`,
    '',
    '| run | load | first token | of the first run | cached tokens | read or written |',
    '|---|---|---|---|---|---|',
    ...rows,
    '',
  ].join('\n');
  process.stdout.write(`\n${report}`);
  if (values.out !== undefined) writeFileSync(values.out, report);
}

main()
  .catch((error: unknown) => {
    process.stderr.write(`${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`);
    process.exitCode = 1;
  })
  .finally(() => rmSync(prefixCacheDir, { recursive: true, force: true }));
