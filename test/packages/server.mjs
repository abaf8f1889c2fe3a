// Serves the embedded model in this process, behind an access key.
import { strictEqual } from 'node:assert';
import { createServer } from 'capstan/server';

const key = 'sk-test-of-the-package';
const server = await createServer({ port: 0, apiKeys: [key] });
const post = (headers) =>
  fetch(`${server.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ temperature: 0, messages: [{ role: 'user', content: 'What is Capstan?' }] }),
  });
strictEqual((await post({})).status, 401);
console.log((await (await post({ authorization: `Bearer ${key}` })).json()).choices[0].message.content);
await server.close();
