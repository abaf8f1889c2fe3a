// A route of Hono that streams an answer: npm install hono @hono/node-server
//
//     node examples/hono.mjs
//     curl localhost:3000/ask -d '{"question": "What is Capstan?"}'
import { serve } from '@hono/node-server';
import { Engine } from 'capstan';
import { Hono } from 'hono';

const engine = await Engine.load(process.env.MODEL ?? 'demo');
const app = new Hono();

app.post('/ask', async (context) => {
  const { question } = await context.req.json();
  const messages = [{ role: 'user', content: question }];
  // A call that fails before it starts becomes a response with an error status.
  return engine.chat(messages, { temperature: 0, maxTokens: 200, signal: context.req.raw.signal }).toResponse();
});

const server = serve({ fetch: app.fetch, port: Number(process.env.PORT ?? 3000) }, ({ port }) => {
  console.log(`http://127.0.0.1:${port}`);
});
process.once('SIGTERM', () => server.close(() => engine.close()));
