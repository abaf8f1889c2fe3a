// A route handler of Next.js: save it as app/api/ask/route.js, and set serverExternalPackages: ['capstan'] in
// next.config.js. Then: curl localhost:3000/api/ask -d '{"question": "What is Capstan?"}'
import { Engine } from 'capstan';

// One engine for all requests, also after Next.js has reloaded this file.
globalThis.capstan ??= Engine.load(process.env.MODEL ?? 'demo');

export async function POST(request) {
  const engine = await globalThis.capstan;
  const { question } = await request.json();
  const messages = [{ role: 'user', content: question }];
  return engine
    .chat(messages, { temperature: 0, maxTokens: 200, signal: request.signal })
    .toResponse({ format: 'sse' });
}
