/** Runs `capstan bench` as a process. */
import { existsSync, mkdtempSync, readdirSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { killAll, prepare, type Running, start, startServer } from '../../fakes/server-process';
import { tinyModel } from '../../fakes/tiny-model';
import { chromium } from 'playwright-core';
import { sendCompletion, startScripted } from '../bench/scripted-server';
import { findBrowser } from '../platform/console/browser';

const modelDir = tinyModel();
let env: NodeJS.ProcessEnv;
let server: Running & { url: string };

beforeAll(async () => {
  env = prepare();
  server = await startServer([modelDir, '--served-model-name', 'tiny'], env);
});
afterAll(killAll);

async function finished(run: Running): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const [code] = await run.exited;
  return { code, ...run.output() };
}

const bench = (...args: string[]) => start(['bench', ...args], env);

test.each([
  [['serve', '--request-rate', 'fast'], "error: --request-rate: expected a number of 0 or more, got 'fast'"],
  [['serve', '--num-prompts', '0'], "error: --num-prompts: expected a whole number of 1 or more, got '0'"],
  [['serve', '--goodput', 'itl:5'], "error: --goodput: expected ttft, tpot or e2el, got 'itl'"],
  [
    ['serve', '--dataset-name', 'sharegpt'],
    "error: --dataset-name: expected random, prefix_repetition or custom, got 'sharegpt'",
  ],
  [['serve', '--dataset-name', 'custom'], 'error: --dataset-path: expected a file for --dataset-name custom'],
  [['serve', '--extra-body', '[]'], "error: --extra-body: expected a JSON object, got '[]'"],
  [['serve', '--concurrency', '1,x'], "error: --concurrency: expected a whole number of 1 or more, got 'x'"],
  [
    ['serve', '--concurrency', '1,2', '--max-concurrency', '4'],
    'error: --concurrency: cannot be used with --max-concurrency',
  ],
  [['serve', '--num-promts', '1'], '(Did you mean --num-prompts?)'],
  [['offline', '--input-len', 'x'], "error: --input-len: expected a whole number of 1 or more, got 'x'"],
])('%j exits with 2 and the reason', async (args, message) => {
  const { code, stdout, stderr } = await finished(bench(...args));
  expect([code, stdout]).toEqual([2, '']);
  expect(stderr).toContain(message);
});

test('an unreachable server exits with 1', async () => {
  const { code, stderr } = await finished(bench('serve', '--port', '1'));
  expect(code).toBe(1);
  expect(stderr).toMatch(/^error: http:\/\/127\.0\.0\.1:1\/v1\/completions is not ready/);
});

test("prints a report and writes the fields of vLLM's benchmark", async () => {
  const dir = mkdtempSync(join(tmpdir(), 'capstan-bench-'));
  const { code, stdout, stderr } = await finished(
    bench(
      'serve',
      '--base-url',
      server.url,
      '--backend',
      'openai-chat',
      '--num_prompts=5',
      '--input-len',
      '20',
      '--output-len',
      '4',
      '--max-concurrency',
      '2',
      '--num-warmups',
      '2',
      '--goodput',
      'e2el:60000',
      '--save-result',
      '--save-detailed',
      '--result-dir',
      dir,
      '--label',
      'mine',
      '--metadata',
      'commit=abc',
    ),
  );
  expect([code, stderr]).toEqual([0, '']);
  expect(stdout).toMatch(/Successful requests: +5\nFailed requests: +0\nMaximum concurrency \(configured\): +2\n/);
  for (const name of [
    'Mean TTFT (ms)',
    'P99 TPOT (ms)',
    'Median ITL (ms)',
    'P90 E2EL (ms)',
    'Goodput (requests per second)',
  ])
    expect(stdout).toContain(name);
  const [file] = readdirSync(dir);
  expect(file).toMatch(/^mine-infqps-concurrency2-tiny-.*\.json$/);
  const result = JSON.parse(readFileSync(join(dir, file), 'utf8'));
  expect(result).toMatchObject({
    backend: 'openai-chat',
    label: 'mine',
    commit: 'abc',
    model_id: 'tiny',
    num_prompts: 5,
    request_rate: 'inf',
    max_concurrency: 2,
    completed: 5,
    failed: 0,
    total_output_tokens: 20,
    errors: [],
  });
  for (const key of [
    'request_throughput',
    'output_throughput',
    'total_token_throughput',
    'mean_ttft_ms',
    'median_tpot_ms',
    'std_itl_ms',
    'p99_e2el_ms',
    'duration',
    'request_goodput',
  ])
    expect(result[key]).toBeGreaterThanOrEqual(0);
  expect([result.ttfts.length, result.itls.length, result.machine.node]).toEqual([5, 5, process.version]);
});

test('--concurrency runs the workload once with each limit, with other prompts', async () => {
  const scripted = await startScripted((_, response) => sendCompletion(response, 'a', 'b', 'c'));
  const args = ['--base-url', scripted.url, '--num-prompts', '6', '--concurrency', '4,1,4,2', '--input-len', '9'];
  const { code, stdout, stderr } = await finished(bench('serve', ...args, '--json', '--goodput', 'e2el:60000'));
  expect([code, stderr]).toEqual([0, '']);
  const { runs } = JSON.parse(stdout);
  const fields = ({ max_concurrency, completed, total_output_tokens }: any) => [
    max_concurrency,
    completed,
    total_output_tokens,
  ];
  expect(runs.map(fields)).toEqual([
    [1, 6, 18],
    [2, 6, 18],
    [4, 6, 18],
  ]);
  expect(runs.every((run: any) => run.max_concurrent_requests <= run.max_concurrency)).toBe(true);
  expect(scripted.peakConcurrency()).toBeLessThanOrEqual(4);
  // One test request before each run.
  const prompts = new Set(scripted.received.map(({ body }) => JSON.stringify(body.prompt)));
  expect([scripted.received.length, prompts.size]).toEqual([21, 18]);

  const table = await finished(bench('serve', ...args));
  expect(table.stdout).toMatch(/^concurrency {2}failed {2}requests\/s {2}output tokens\/s {2}TTFT p50 \(ms\)/);
  expect(table.stdout.match(/^ +[124] +0 /gm)).toHaveLength(3);
  await scripted.close();
});

test('a sweep that loses its server reports the runs before', async () => {
  const scripted = await startScripted((_, response, index) => {
    if (index < 3) return sendCompletion(response, 'a', 'b');
    response.writeHead(503).end();
  });
  const args = ['--base-url', scripted.url, '--num-prompts', '2', '--concurrency', '1,2'];
  const { code, stdout, stderr } = await finished(bench('serve', ...args));
  expect([code, stderr]).toEqual([1, expect.stringMatching(/^error: the first request to \S+ failed \(http 503/)]);
  expect(stdout.match(/^ +[12] +0 /gm)).toHaveLength(1);
  await scripted.close();
});

const browserPath = findBrowser();

(browserPath === undefined ? test.skip : test)('--report writes a page that draws its plots by itself', async () => {
  const scripted = await startScripted((_, response) => sendCompletion(response, 'a', 'b', 'c'));
  const folder = mkdtempSync(join(tmpdir(), 'capstan-bench-'));
  const args = ['--base-url', scripted.url, '--num-prompts', '4', '--label', '</script><b>mine</b>'];
  const [run, sweep] = [join(folder, 'new', 'run.html'), join(folder, 'sweep.html')];
  expect((await finished(bench('serve', ...args, '--report', run))).stdout).toContain(`Wrote ${run}\n`);
  await finished(bench('serve', ...args, '--concurrency', '1,2', '--report', sweep));
  await scripted.close();

  const browser = await chromium.launch({ executablePath: browserPath, args: ['--no-sandbox'] });
  try {
    const page = await browser.newPage();
    const [requests, errors]: string[][] = [[], []];
    page.on('request', (request) => requests.push(request.url()));
    page.on('pageerror', ({ message }) => errors.push(message));
    const read = async (file: string) => {
      await page.goto(`file://${file}`);
      return [await page.locator('canvas').count(), await page.locator('body > table tbody tr').count()];
    };
    expect([await read(run), await read(sweep)]).toEqual([
      [5, 13],
      [4, 2],
    ]);
    expect(await page.locator('h1').innerText()).toBe('</script><b>mine</b>');
    expect([requests, errors]).toEqual([[`file://${run}`, `file://${sweep}`], []]);
  } finally {
    await browser.close();
  }
});

test('Ctrl-C reports the results so far', async () => {
  const scripted = await startScripted((_, response, index) => {
    if (index <= 5) return sendCompletion(response, 'a', 'b');
    run.process.kill('SIGINT');
  });
  const run = bench('serve', '--base-url', scripted.url, '--num-prompts', '1000', '--max-concurrency', '1');
  const { code, stdout } = await finished(run);
  expect(code).toBe(130);
  expect(stdout).toMatch(/Successful requests: +5\nFailed requests: +1\nNot sent because the run was stopped: +994\n/);
  expect(stdout).toMatch(/stopped: +1\n/);
  await scripted.close();
});

test('offline runs requests through the library', async () => {
  const file = join(mkdtempSync(join(tmpdir(), 'capstan-bench-')), 'offline.json');
  const { code, stdout } = await finished(
    bench('offline', modelDir, '--num-prompts', '3', '--input-len', '8', '--output-len', '5', '--output-json', file),
  );
  expect(code).toBe(0);
  expect(stdout).toContain('3 requests of 8 tokens in and 5 out');
  expect(existsSync(file)).toBe(true);
  expect(JSON.parse(readFileSync(file, 'utf8'))).toMatchObject({
    workload: { numPrompts: 3, inputLen: 8 },
    machine: { node: process.version },
  });
});
