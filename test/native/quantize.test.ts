/** Runs `capstan quantize` as a process, with the addon. */
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';

import { killAll, prepare, start } from '../fakes/server-process';
import { temporaryFolder } from '../fakes/temporary-folder';

const root = path.join(__dirname, '../..');
const main = path.join(root, 'dist/server/main.js');
const folder = temporaryFolder('quantize-cli');

beforeAll(() => {
  prepare();
});
afterAll(killAll);

const left = () => readdirSync(folder).filter((name) => name.includes('partial'));

async function quantize(...args: string[]) {
  const run = start(['quantize', ...args], {});
  const [code] = await run.exited;
  return { code, ...run.output() };
}

test('writes a model that the next command runs', async () => {
  const out = path.join(folder, 'demo-int4');
  const { code, stdout, stderr } = await quantize(
    'demo',
    '--out',
    out,
    '--quantization',
    'int4',
    '--max-shard-size',
    '1M',
  );
  expect(stderr).toMatch(/^quantized 43 matrices: 10\.2 MB became \d\.\d MB\n$/);
  expect({ code, stdout }).toEqual({ code: 0, stdout: `${out}\n` });
  expect(readdirSync(out)).toEqual(
    expect.arrayContaining(['chat_template.jinja', 'config.json', 'model.safetensors.index.json', 'tokenizer.json']),
  );
  expect(readdirSync(out).filter((name) => name.endsWith('.py'))).toEqual([]);
  const answer = async (...args: string[]) => {
    const run = start(['run', '-p', 'What is the capital of France?', ...args], {});
    await run.exited;
    return run.output().stdout;
  };
  expect(await answer(out)).toMatch(/\w/);
});

test('refuses a folder that is not empty, and a missing --out', async () => {
  const full = await quantize('demo', '--out', root);
  expect(full.code).toBe(2);
  expect(full.stderr).toMatch(/error: out: expected a folder that is empty or does not exist, got .* files/);
  expect(await quantize('demo')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--out: expected the folder'),
  });
  expect((await quantize('demo', '--out', folder, '--group-size', '48')).stderr).toContain("got '48'");
});

test('Ctrl-C and a disk that takes no more leave nothing behind', async () => {
  const stopped = path.join(folder, 'stopped');
  const run = start(['quantize', 'demo', '--out', stopped], {});
  run.process.kill('SIGINT');
  const [code, signal] = await run.exited;
  expect(code === 130 || signal === 'SIGINT').toBe(true);

  // Files of at most 1 MiB stand for a full disk. The signal of the limit is ignored, so that the write fails.
  const out = path.join(folder, 'full');
  const script = `trap '' XFSZ; ulimit -f 1024; exec '${process.execPath}' '${main}' quantize demo --out '${out}'`;
  const full = spawnSync('bash', ['-c', script], { encoding: 'utf8' });
  expect(full.status).toBe(1);
  expect(full.stderr).toMatch(/error: .*full: cannot write the checkpoint: EFBIG/);
  expect([existsSync(stopped), existsSync(out), left()]).toEqual([false, false, []]);
});
