import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

const ROOT = path.join(__dirname, '..', '..');
const MODEL = path.join(ROOT, 'test', 'oracle', 'fixtures', 'qwen2-bf16');
const PRELUDE = `
  const { Engine } = require(${JSON.stringify(path.join(ROOT, 'ts', 'index'))});
  const { Worker } = require('node:worker_threads');
  const MODEL = ${JSON.stringify(MODEL)};
  const REGISTER = ${JSON.stringify(path.join(ROOT, 'test', 'oracle', 'register-ts.cjs'))};
  const LONG = { temperature: 0, maxTokens: 500, ignoreEos: true };
  // Takes the demo model seconds, so that it is still running when the test acts.
  const ENDLESS = { temperature: 0, maxTokens: 2000, ignoreEos: true };
  const count = (folder) => require('node:fs').readdirSync(folder).length;
  const numFiles = () => count('/proc/self/fd');
  const numThreads = () => count('/proc/self/task');
  const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  process.on('unhandledRejection', (error) => { console.error('unhandled', error); process.exit(99); });
`;

/** Runs a script in a separate process, because the tests are about how the process ends. */
function run(
  script: string,
  nodeFlags: string[] = [],
  env: NodeJS.ProcessEnv = {},
): { status: number | null; signal: string | null; stdout: string; stderr: string } {
  const body = `${PRELUDE}\n(async () => {${script}})().catch((error) => { console.error(error); process.exit(98); });`;
  const { status, signal, stdout, stderr } = spawnSync(
    process.execPath,
    [...nodeFlags, '-r', path.join(ROOT, 'test', 'oracle', 'register-ts.cjs'), '-e', body],
    { encoding: 'utf8', timeout: 300_000, env: { ...process.env, ...env } },
  );
  return { status, signal, stdout, stderr };
}

function expectOutput(script: string, stdout: string, status = 0): void {
  expect(run(script)).toEqual({ status, signal: null, stdout, stderr: '' });
}

/** A worker thread that generates without end and posts a message for each delta. */
const BUSY_WORKER = `
  const busy = () => new Worker(
    "require(" + JSON.stringify(REGISTER) + ");"
    + "const { Engine } = require(" + JSON.stringify(${JSON.stringify(path.join(ROOT, 'ts', 'index'))}) + ");"
    + "const { parentPort, workerData } = require('node:worker_threads');"
    + "(async () => { const engine = await Engine.load(workerData); parentPort.postMessage('loaded');"
    + "for (;;) for await (const event of engine.generate([1, 2, 3], { maxTokens: 300, ignoreEos: true })) if (event.type === 'delta') parentPort.postMessage('delta'); })();",
    { eval: true, workerData: MODEL });
  const next = (worker, wanted) => new Promise((resolve, reject) => {
    worker.on('message', (message) => message === wanted && resolve());
    worker.on('error', reject);
  });
`;

describe('the addon in a process', () => {
  test('an idle engine does not keep the process alive', () => {
    expectOutput(
      `const engine = await Engine.load(MODEL); await engine.generate([1, 2], { maxTokens: 3 }).result(); console.log('done');`,
      'done\n',
    );
  });

  test('an open request keeps the process alive until it ends', () => {
    expectOutput(
      `const engine = await Engine.load(MODEL); engine.generate([1, 2], LONG).result().then((r) => console.log(r.choices[0].finishReason));`,
      'length\n',
    );
  });

  test('process.exit during a stream exits with its status', () => {
    expectOutput(
      `const engine = await Engine.load(MODEL); for await (const event of engine.generate([1, 2], LONG)) process.exit(7);`,
      '',
      7,
    );
  });

  test('process.exit while loading exits with its status', () => {
    expectOutput(`Engine.load(MODEL).catch(() => {}); await sleep(1); process.exit(6);`, '', 6);
  });

  test('closing is idempotent and ends open requests with engine_closed', () => {
    expectOutput(
      `
      const engine = await Engine.load('demo');
      const generation = engine.generate([1, 2], ENDLESS);
      const result = generation.result().catch((error) => console.log(error.code));
      await generation.submitted;
      await Promise.all([engine.close(), engine.close()]);
      await engine.close();
      await result;
      try { await engine.generate([1], {}).result(); } catch (error) { console.log(error.code); }`,
      'engine_closed\nengine_closed\n',
    );
  });

  test('an unread result raises no unhandled rejection', () => {
    expectOutput(
      `
      const engine = await Engine.load(MODEL);
      const generation = engine.generate([1, 2], LONG);
      generation.result();
      await sleep(5);
      await engine.close();
      await sleep(20);
      console.log('quiet');`,
      'quiet\n',
    );
  });

  test('leaving the loop aborts the request and frees its blocks', () => {
    expectOutput(
      `
      const engine = await Engine.load('demo');
      for await (const event of engine.generate([1, 2], ENDLESS)) break;
      while (engine.stats().numRunning > 0) await sleep(5);
      const stats = engine.stats();
      console.log(stats.numRunning, stats.numFinished.abort, stats.numFreeBlocks + stats.numCachedBlocks === stats.numBlocks);
      await engine.close();`,
      '0 1 true\n',
    );
  });

  test('the engine keeps working after an exception in the reader', () => {
    expectOutput(
      `
      const engine = await Engine.load(MODEL);
      try { for await (const event of engine.generate([1, 2], LONG)) throw new Error('reader'); } catch (error) { console.log(error.message); }
      console.log((await engine.generate([1, 2], { maxTokens: 2, ignoreEos: true }).result()).choices[0].tokenIds.length);
      await engine.close();`,
      'reader\n2\n',
    );
  });

  test('loading can be aborted repeatedly', () => {
    expectOutput(
      `
      let numAborted = 0;
      for (let i = 0; i < 20; ++i) {
        const controller = new AbortController();
        const loading = Engine.load(MODEL, { signal: controller.signal });
        if (i % 2) await sleep(i / 4);
        controller.abort();
        await loading.then((engine) => engine.close(), (error) => { numAborted += error.code === 'aborted' || error.name === 'AbortError'; });
      }
      console.log(numAborted > 0);`,
      'true\n',
    );
  });

  test('a load whose tokenizer fails ends with the error of the tokenizer, and leaves nothing behind', () => {
    expectOutput(
      `
      const fs = require('node:fs');
      const broken = fs.mkdtempSync(require('node:path').join(require('node:os').tmpdir(), 'capstan-broken-'));
      fs.cpSync(MODEL, broken, { recursive: true });
      fs.writeFileSync(broken + '/tokenizer.json', '{}');
      await (await Engine.load(MODEL)).close();
      const before = [numThreads(), numFiles()];
      const errors = new Set();
      for (let i = 0; i < 10; ++i)
        await Engine.load(broken).then(
          () => errors.add('none'),
          ({ code, message }) => errors.add(code + ' ' + message.split(':')[0]),
        );
      while (numThreads() > before[0] || numFiles() > before[1]) await sleep(10);
      console.log(...errors);
      fs.rmSync(broken, { recursive: true });`,
      'invalid_model tokenizer.json\n',
    );
  });

  test('an engine that is dropped without close is freed, with a warning', () => {
    const { status, stdout, stderr } = run(
      `
      await (await Engine.load(MODEL)).close();
      const before = numThreads();
      await (async () => {
        const engine = await Engine.load(MODEL);
        await engine.generate([1, 2], { maxTokens: 3 }).result();
      })();
      const warning = new Promise((resolve) => process.once('warning', resolve));
      let code;
      warning.then((given) => (code = given.code));
      while (code === undefined || numThreads() > before) {
        gc();
        await sleep(5);
      }
      console.log(code);
      let numMore = 0;
      process.on('warning', () => numMore++);
      await (async () => {
        const engine = await Engine.load(MODEL);
        await engine.close();
      })();
      for (let i = 0; i < 20; ++i) {
        gc();
        await sleep(5);
      }
      console.log(numMore);`,
      ['--expose-gc'],
    );
    expect({ status, stdout }).toEqual({ status: 0, stdout: 'CAPSTAN_ENGINE_NOT_CLOSED\n0\n' });
    expect(stderr).toContain('engine.close()');
  });

  test('a call keeps a dropped engine until it ends', () => {
    const { status, stdout } = run(
      `
      const result = (async () => (await Engine.load(MODEL)).generate([1, 2], LONG).result())();
      let isDone = false;
      result.finally(() => (isDone = true));
      while (!isDone) {
        gc();
        await sleep(5);
      }
      console.log((await result).choices[0].finishReason);`,
      ['--expose-gc'],
    );
    expect({ status, stdout }).toEqual({ status: 0, stdout: 'length\n' });
  });

  test('failed loads leave no file open', () => {
    expectOutput(
      `
      const fs = require('node:fs');
      const os = require('node:os');
      const path = require('node:path');
      await (await Engine.load(MODEL)).close();
      const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'capstan-damaged-'));
      fs.cpSync(MODEL, dir, { recursive: true });
      const shard = path.join(dir, fs.readdirSync(dir).find((name) => name.endsWith('.safetensors')));
      const whole = fs.readFileSync(shard);
      const codes = [];
      const before = numFiles();
      const attempt = async () => {
        await Engine.load(dir).then((engine) => engine.close(), (error) => codes.push(error.code));
        if (numFiles() !== before) codes.push('leak');
      };
      fs.writeFileSync(shard, whole.subarray(0, whole.length - 100));
      await attempt();
      fs.writeFileSync(shard, whole.subarray(0, 20));
      await attempt();
      fs.writeFileSync(shard, Buffer.alloc(whole.length, 255));
      await attempt();
      fs.rmSync(shard);
      await attempt();
      fs.rmSync(dir, { recursive: true });
      console.log(codes.join());`,
      'invalid_model,invalid_model,invalid_model,invalid_model\n',
    );
  });

  test('a load without threads left rejects, and the next one works', () => {
    const dir = mkdtempSync(path.join(tmpdir(), 'capstan-threads-'));
    try {
      const library = path.join(dir, 'thread_limit.so');
      execFileSync('cc', ['-shared', '-fPIC', '-o', library, path.join(__dirname, 'thread_limit.c'), '-ldl']);
      const { status, stdout, stderr } = run(
        `
        const answer = async () => {
          const engine = await Engine.load(MODEL, { threads: 2 });
          const { choices } = await engine.generate([1, 2], { maxTokens: 2, ignoreEos: true }).result();
          await engine.close();
          return choices[0].tokenIds.length;
        };
        await answer();
        const before = numFiles();
        const codes = [];
        for (let left = 0; codes.at(-1) !== 2; ++left) {
          process.env.CAPSTAN_TEST_THREADS_LEFT = String(left);
          codes.push(await answer().catch((error) => error.code));
          process.env.CAPSTAN_TEST_THREADS_LEFT = '';
          if ((await answer()) !== 2 || numFiles() !== before) codes.push('broken');
        }
        console.log(codes.join());`,
        [],
        { LD_PRELOAD: library },
      );
      // The threads of the load, of the team, of the masks and of the engine.
      expect({ status, stdout, stderr }).toEqual({
        status: 0,
        stdout: `${'out_of_memory,'.repeat(5)}2\n`,
        stderr: '',
      });
    } finally {
      rmSync(dir, { recursive: true });
    }
  });

  test('several engines run side by side', () => {
    expectOutput(
      `
      const engines = await Promise.all([1, 2, 4].map((threads) => Engine.load(MODEL, { threads })));
      const answers = await Promise.all(engines.map((engine) => engine.generate([5, 6, 7], { temperature: 0, maxTokens: 20 }).result()));
      console.log(new Set(answers.map((answer) => answer.choices[0].tokenIds.join())).size);
      await Promise.all(engines.map((engine) => engine.close()));`,
      '1\n',
    );
  });

  test('worker threads can be terminated during a stream and while loading', () => {
    expectOutput(
      `
      ${BUSY_WORKER}
      const engine = await Engine.load(MODEL);
      for (let i = 0; i < 6; ++i) {
        const workers = [busy(), busy()];
        if (i % 3 === 0) await sleep(40 + 10 * i);
        else await Promise.all(workers.map((worker) => next(worker, 'delta')));
        await Promise.all(workers.map((worker) => worker.terminate()));
      }
      console.log((await engine.generate([1, 2], { maxTokens: 2, ignoreEos: true }).result()).choices[0].tokenIds.length);
      await engine.close();`,
      '2\n',
    );
  });
});
