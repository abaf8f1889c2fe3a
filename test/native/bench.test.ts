/** Runs the benchmarks of `capstan bench` that measure the engine and the machine, in small. */
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { killAll, prepare, start } from '../fakes/server-process';

const READ = ['--threads', '1', '--repeats', '2', '--read-bytes', '4M'];
let folder: string;

beforeAll(() => {
  prepare();
  folder = mkdtempSync(join(tmpdir(), 'capstan-bench-'));
});
afterAll(killAll);

async function bench(...args: string[]): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const run = start(['bench', ...args], {});
  const [code] = await run.exited;
  return { code, ...run.output() };
}

/** The data of the plots of a page. */
function plotsOf(file: string): any[] {
  const [, data] = /<script type="application\/json" id="data">(.*)<\/script>/.exec(readFileSync(file, 'utf8'))!;
  return JSON.parse(data);
}

test('limits: the fastest rate of each read pattern', async () => {
  const { code, stdout, stderr } = await bench('limits', ...READ, '--json');
  expect([code, stderr]).toEqual([0, '']);
  const { reads, threads, readBytes, machine, f32GflopPerS, int8GopPerS } = JSON.parse(stdout);
  expect([threads, readBytes, machine.node]).toEqual([1, 4 << 20, process.version]);
  expect(reads).toHaveLength(4);
  for (const { gbPerS } of reads) expect(gbPerS).toBeGreaterThan(0);
  const hasAvx2 = process.arch === 'x64' && / avx2 /.test(readFileSync('/proc/cpuinfo', 'utf8'));
  for (const rate of [f32GflopPerS, int8GopPerS]) expect(rate > 0).toBe(hasAvx2);
  expect((await bench('limits', ...READ)).stdout).toMatch(/^limit +unit +value\nread: one region per thread/);
});

test('ops: no op exceeds its limit, and the page shows the shares', async () => {
  const page = join(folder, 'ops.html');
  const small = ['--rows', '8,1,65', '--layers', '1', '--vocab-size', '512', '--context', '32'];
  const { code, stdout, stderr } = await bench('ops', ...small, ...READ, '--json', '--report', page);
  expect([code, stderr]).toEqual([0, `Wrote ${page}\n`]);
  const { results, isa, packedBytes } = JSON.parse(stdout);
  expect(packedBytes).toBeGreaterThan(2 * 512 * 896);
  expect([
    'portable',
    'avx2',
    'avxvnni',
    'avx512',
    'avx512vnni',
    'avx512bf16',
    'amx',
    'neon',
    'neondot',
    'neonbf16',
  ]).toContain(isa);
  expect(results.map(({ rows }: any) => rows)).toEqual([1, 8, 65]);
  for (const { ops } of results) {
    expect(ops.map(({ op }: any) => op)).toEqual([
      ...['embed', 'norm_qkv', 'attention', 'output_residual', 'norm_gate_up', 'down_residual', 'lm_head', 'step'],
    ]);
    for (const { ms, limitShare } of ops) {
      expect(ms).toBeGreaterThan(0);
      expect(limitShare).toBeGreaterThanOrEqual(0);
      expect(limitShare).toBeLessThanOrEqual(1);
    }
    const parts = ops.slice(0, -1).reduce((sum: number, { ms }: any) => sum + ms, 0);
    expect(ops.at(-1).ms).toBeCloseTo(parts);
  }
  const [shares] = plotsOf(page);
  expect([shares.title, shares.x.values]).toEqual(['Share of the limit', [1, 8, 65]]);
});

test('ops: --quantization measures smaller weights', async () => {
  const small = ['--rows', '1', '--layers', '1', '--vocab-size', '512', '--context', '32'];
  const bytes = async (weights: string) => {
    const { stdout } = await bench('ops', ...small, ...READ, '--quantization', weights, '--json');
    return JSON.parse(stdout).packedBytes as number;
  };
  const [exact, int8, int4] = [await bytes('none'), await bytes('int8'), await bytes('int4')];
  expect(int8 / exact).toBeCloseTo(8.125 / 16, 2);
  expect(int4).toBeLessThan(0.6 * int8);
});

test('ops: --kv-cache-dtype int8 reads 68 bytes of a key instead of 128', async () => {
  const small = ['--rows', '2', '--layers', '1', '--vocab-size', '512', '--context', '64'];
  const bytes = async (type: string) => {
    const { stdout } = await bench('ops', ...small, ...READ, '--kv-cache-dtype', type, '--json');
    const { ms, gbPerS } = JSON.parse(stdout).results[0].ops.find(({ op }: any) => op === 'attention');
    return ms * gbPerS;
  };
  expect((await bytes('int8')) / (await bytes('auto'))).toBeCloseTo(68 / 128, 5);
});

test('offline: --profile divides the time of the steps', async () => {
  const page = join(folder, 'offline.html');
  const args = ['offline', '--num-prompts', '5', '--input-len', '8', '--output-len', '6', '--threads', '1'];
  const { code, stdout } = await bench(...args, '--profile', '--json', '--report', page);
  expect(code).toBe(0);
  const { duration, output_tokens_per_second: rate, profile } = JSON.parse(stdout);
  expect(rate * duration).toBeCloseTo(30);
  const sum = (values: number[]) => values.reduce((total, value) => total + value, 0);
  const { steps, limits, idleUs } = profile;
  // Each prompt is computed once, and each of its tokens but the last one is the input of a step.
  expect(sum(steps.map(({ numTokens }: any) => numTokens))).toBe(5 * (8 + 5));
  expect(idleUs).toBeGreaterThanOrEqual(0);
  expect((sum(steps.map(({ us }: any) => us)) + idleUs) / 1e6).toBeGreaterThanOrEqual(duration * 0.999);
  expect(limits.readGbPerS).toBeGreaterThan(0);
  for (const { us, parts } of steps) {
    expect(sum(parts.map((part: any) => part.us))).toBeCloseTo(us, 0);
    const shares = parts.filter(({ limitShare }: any) => limitShare !== null);
    expect(shares.map(({ name }: any) => name)).toEqual(expect.arrayContaining(['attention', 'LM head']));
    for (const { limitShare } of shares) {
      expect(limitShare).toBeGreaterThan(0);
      expect(limitShare).toBeLessThanOrEqual(1);
    }
  }
  expect(existsSync(page)).toBe(true);
  const text = (await bench(...args, '--profile')).stdout;
  expect(text).toMatch(
    /\nA step of decode: mean of \d+ with [\d.]+ tokens each:\npart +µs +of it waiting +% of the step +% of the limit\n/,
  );
  expect(text).toMatch(/\nattention +[\d.]+ +[\d.]+ +[\d.]+ +\d+\n/);
  expect((await bench(...args, '--json')).stdout).not.toContain('"profile"');
});

test.each([
  [['limits', '--threads', '100000'], 'error: --threads: expected an integer from 1 to '],
  [['limits', '--read-bytes', 'x'], "error: --read-bytes: expected a number of bytes, such as 512M or 2G, got 'x'"],
  [['ops', '--rows', '1,513'], "error: --rows: expected a whole number from 1 to 512, got '513'"],
  [
    ['ops', '--isa', 'sve'],
    "error: --isa: expected auto, portable, avx2, avxvnni, avx512, avx512vnni, avx512bf16, amx, neon, neondot or neonbf16, got 'sve'",
  ],
  [['ops', '--layers', '101'], "error: --layers: expected a whole number from 1 to 100, got '101'"],
  [['offline', '--max-num-seqs', '99999999999'], 'error: --max-num-seqs: expected an integer from 1 to 2147483647'],
])('%j exits with 2 and the reason', async (args, message) => {
  const { code, stdout, stderr } = await bench(...args);
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr).toContain(message);
});

test('peers says what is missing', async () => {
  const dir = join(folder, 'peers');
  const { code, stderr } = await bench('peers', '--dir', dir, '--gguf', '/no/gguf', '--checkpoint', '/no/model');
  expect(code).toBe(2);
  expect(stderr).toContain(`without llama.cpp: ${dir}/L/bin/python does not exist: install llama.cpp as `);
  expect(stderr).toContain('/no/gguf does not exist: write the model as benchmarks/peers/README.md says');
  expect(stderr).toContain(`without OpenVINO: ${dir}/O/bin/python does not exist`);
  expect(stderr).toContain(`error: bench peers: ${dir}/compare.py does not exist: run the command in a clone`);
  expect(stderr).toContain('/no/model does not exist: write the model with make_model.py');
});

test('peers compares the engine with the peers that are installed', async () => {
  const dir = join(folder, 'benchmarks/peers');
  const builds = join(folder, 'build/benchmarks');
  for (const made of [join(dir, 'L/bin'), builds]) mkdirSync(made, { recursive: true });
  copyFileSync(join(__dirname, '../../benchmarks/peers/compare.py'), join(dir, 'compare.py'));
  // The second task, four streams, is faster than the tests of the machine.
  const answers = (name: string, speed: number) =>
    `echo '{"peer":"${name}"}'; while read -r task; do case $task in *'"streams": 4'*) echo '{"tokens_per_s":400}';; *) echo '{"tokens_per_s":${speed}}'; esac; done`;
  // A Python that has the module, and speaks the protocol when it runs the script.
  writeFileSync(join(dir, 'L/bin/python'), `#!/bin/sh\n[ "$1" = -c ] && exit 0\n${answers('a llama', 20)}\n`, {
    mode: 0o755,
  });
  const writeLimits = (bf16: number) => {
    const limits = `{"machine":"m","read_gb_per_s":49.4,"bf16_gflop_per_s":${bf16}}`;
    writeFileSync(join(builds, 'ops'), `#!/bin/sh\necho '${limits}'\n`, { mode: 0o755 });
  };
  writeLimits(1000);
  writeFileSync(
    join(dir, 'capstan_peer.mjs'),
    `import { createInterface } from 'node:readline';
     console.log(JSON.stringify({ peer: 'ours ' + process.argv[2] }));
     for await (const line of createInterface(process.stdin)) console.log('{"tokens_per_s":40}');`,
  );
  const model = join(folder, "a model's folder");
  writeFileSync(model, '');
  const args = ['peers', '--dir', dir, '--gguf', model, '--checkpoint', model, '--rounds', '1', '--threads', '1'];
  const { code, stdout, stderr } = await bench(...args, '--cpu-time', '--openvino', '/no/model');
  expect([code, stderr]).toEqual([0, expect.stringContaining('round 1, decode, 1 stream, capstan: 40.0')]);
  expect(stderr).toContain('without OpenVINO: ');
  expect(stdout).toMatch(/^work +llama.cpp +capstan +limit +capstan : best peer +% of limit\n/);
  expect(stdout).toMatch(/^decode, 1 stream +20 +40 +100(\.0)? +2 +40(\.0)?$/m);
  expect(stdout).toMatch(/^decode, 4 streams +400 +40 +400(\.0)? +0\.100? +10(\.0)?$/m);
  const { peers, rows } = JSON.parse((await bench(...args, '--cpu-time', '--json')).stdout);
  expect(peers).toEqual({ 'llama.cpp': 'a llama', capstan: `ours ${model}` });
  expect(rows).toHaveLength(4);
  for (const { limit, speeds } of rows)
    expect(Math.max(...(Object.values(speeds) as number[]))).toBeLessThanOrEqual(limit);
  writeLimits(0); // a machine without a test of the products
  const withoutTest = JSON.parse((await bench(...args, '--cpu-time', '--json')).stdout);
  expect(withoutTest.rows.at(-1).limit).toBeCloseTo(40);
});
