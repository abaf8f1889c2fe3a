// Runs the examples that use packages of npm, in a folder where they are installed (argument).
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import { run } from './checks.mjs';

const folder = process.argv[2];
cpSync(new URL('../../examples', import.meta.url), folder, { recursive: true });
const body = JSON.stringify({ question: 'What is Capstan?' });
const headers = { 'content-type': 'application/json' };

/** Starts a server, asks it, and ends it. */
async function askServer(example) {
  const child = spawn(process.execPath, [join(folder, example)], {
    env: { ...process.env, PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  try {
    const [url] = await once(createInterface({ input: child.stdout }), 'line');
    const post = (text) =>
      fetch(`${url}/ask`, { method: 'POST', headers: { ...headers, connection: 'close' }, body: text });
    const answer = await post(body);
    assert.equal(answer.status, 200);
    assert.match(answer.headers.get('content-type'), /^text\/plain/);
    assert.match(await answer.text(), /Capstan/);
    const refused = await post('{"question": 1}');
    assert.equal(refused.status, 400);
    assert.match((await refused.json()).error.message, /messages\[0\]\.content/);
  } finally {
    child.kill('SIGTERM');
  }
  assert.deepEqual(await exited, [0, null]);
}

const runExample = (example) => execFileSync(process.execPath, [join(folder, example)], { encoding: 'utf8' });

await run(`examples, Node ${process.versions.node}`, {
  'fastify.mjs': () => askServer('fastify.mjs'),
  'express.mjs': () => askServer('express.mjs'),
  'hono.mjs': () => askServer('hono.mjs'),
  'next-route.mjs': async () => {
    const { POST } = await import(pathToFileURL(join(folder, 'next-route.mjs')).href);
    const answer = await POST(new Request('http://localhost/api/ask', { method: 'POST', body }));
    assert.match(await answer.text(), /^data: \{"type":"delta"[^]*data: \[DONE\]\n\n$/);
    await (await globalThis.capstan).close();
  },
  'ai-sdk.mjs': () => assert.match(runExample('ai-sdk.mjs'), /Capstan[^]*\n[^]*21/),
  'langchain.mjs': () => assert.match(runExample('langchain.mjs'), /Capstan[^]*name: 'Anna', age: 31/),
});
