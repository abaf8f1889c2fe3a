// A route of Fastify that streams an answer: npm install fastify
//
//     node examples/fastify.mjs
//     curl localhost:3000/ask -d '{"question": "What is Capstan?"}' -H 'content-type: application/json'
import { Readable } from 'node:stream';
import { Engine } from 'capstan';
import fastify from 'fastify';

const engine = await Engine.load(process.env.MODEL ?? 'demo');
const app = fastify();

app.post('/ask', async (request, reply) => {
  const { question } = request.body;
  const answer = engine.chat([{ role: 'user', content: question }], { temperature: 0, maxTokens: 200 });
  await answer.submitted; // rejects if the request is not valid or the queue is full
  return reply.type('text/plain; charset=utf-8').send(Readable.fromWeb(answer.toReadableStream()));
});

app.setErrorHandler((error, _request, reply) => {
  reply.code(error.code === 'queue_full' ? 429 : 400).send({ error: { code: error.code, message: error.message } });
});
app.addHook('onClose', () => engine.close());
console.log(await app.listen({ port: Number(process.env.PORT ?? 3000) }));
process.once('SIGTERM', () => app.close());
