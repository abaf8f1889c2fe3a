/**
 * Measures inputs per second of the engine for `compare.py`, which starts it: `ours.ts MODEL DTYPE THREADS [PACKAGE]`.
 * PACKAGE is the folder of an installed package; without it, the sources are measured. Reads one line
 * `BATCH LENGTH SECONDS` after the other from standard input, and answers each with a rate.
 */
import { createInterface } from 'node:readline';
import type * as Capstan from '../../ts';

async function main(): Promise<void> {
  const [model, dtype, threads, installed = '../../ts'] = process.argv.slice(2);
  const { Engine } = (await import(installed)) as typeof Capstan;
  const engine = await Engine.load(model, {
    device: 'cpu',
    dtype: dtype as 'f32' | 'bf16',
    computeDtype: dtype as 'f32' | 'bf16',
    threads: Number(threads),
    maxNumSeqs: 256,
  });
  console.log('ready');
  for await (const line of createInterface({ input: process.stdin })) {
    const [batch, length, seconds] = line.split(' ').map(Number);
    const inputs = Array.from({ length: batch }, (_, row) =>
      Array.from({ length }, (__, i) => 1000 + ((row * 131 + i * 17) % 20000)),
    );
    await engine.embed(inputs);
    const begin = performance.now();
    let count = 0;
    do {
      await engine.embed(inputs);
      count += batch;
    } while (performance.now() - begin < seconds * 1000);
    console.log((count / ((performance.now() - begin) / 1000)).toFixed(3));
  }
  await engine.close();
}

void main();
