/**
 * Judges the cache with huggingface_hub: it finds what `capstan pull` has downloaded, and Capstan loads what it has
 * downloaded without a request. Run: node -r ./test/oracle/register-ts.cjs test/oracle/hub-cache.ts PYTHON
 */
import { execFile } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { HubServer } from '../fakes/hub-server';

const root = join(__dirname, '../..');
const demo = join(root, 'models/demo');
const NAME = 'acme/demo';
const run = promisify(execFile);

const FIND = `
import json
from huggingface_hub import scan_cache_dir, snapshot_download, try_to_load_from_cache
cache = scan_cache_dir()
[repo] = cache.repos
print(json.dumps({
    'warnings': [str(warning) for warning in cache.warnings],
    'files': repo.nb_files,
    'weights': try_to_load_from_cache('${NAME}', 'model.safetensors'),
    'snapshot': snapshot_download('${NAME}', local_files_only=True),
}))`;
const DOWNLOAD = `from huggingface_hub import snapshot_download; print(snapshot_download('${NAME}'))`;
const LOAD = `
const { Engine } = require(${JSON.stringify(root)});
Engine.load('${NAME}').then((engine) => { console.log(engine.info.modelName); return engine.close(); });`;

async function main(python: string): Promise<void> {
  const names = readdirSync(demo).filter((name) => /\.(json|jinja|safetensors)$/.test(name));
  const hub = new HubServer();
  await hub.start();
  hub.add(NAME, Object.fromEntries(names.map((name) => [name, readFileSync(join(demo, name))])));
  const folder = mkdtempSync(join(tmpdir(), 'capstan-hub-'));
  const env = (home: string, endpoint: string) => ({
    env: { ...process.env, HF_HOME: join(folder, home), HF_ENDPOINT: endpoint, HF_TOKEN: '' },
  });
  try {
    const pull = [join(root, 'dist/server/main.js'), 'pull', NAME];
    const { stdout: path } = await run(process.execPath, pull, env('ours', hub.url));
    // No server listens on this port, so a request fails.
    const found = await run(python, ['-c', FIND], env('ours', 'http://127.0.0.1:9'));
    const snapshot = path.trim();
    const weights = join(snapshot, 'model.safetensors');
    const expected = { warnings: [], files: names.length, weights, snapshot };
    if (JSON.stringify(JSON.parse(found.stdout)) !== JSON.stringify(expected))
      throw new Error(`huggingface_hub finds something else: ${found.stdout}`);
    await run(python, ['-c', DOWNLOAD], env('theirs', hub.url));
    const { stdout: name } = await run(process.execPath, ['-e', LOAD], env('theirs', 'http://127.0.0.1:9'));
    if (name.trim() !== NAME) throw new Error(`Capstan loads something else: ${name}`);
    console.log('huggingface_hub and Capstan find what the other has downloaded');
  } finally {
    rmSync(folder, { recursive: true });
    await hub.close();
  }
}

void main(process.argv[2] ?? 'python3');
