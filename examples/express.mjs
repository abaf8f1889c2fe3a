// A route of Express that streams an answer: npm install express
//
//     node examples/express.mjs
//     curl localhost:3000/ask -d '{"question": "What is Capstan?"}' -H 'content-type: application/json'
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { Engine } from 'capstan';
import express from 'express';

const engine = await Engine.load(process.env.MODEL ?? 'demo');
const app = express();
app.use(express.json());

app.post('/ask', async (request, response) => {
  const messages = [{ role: 'user', content: request.body.question }];
  const answer = engine.chat(messages, { temperature: 0, maxTokens: 200 });
  await answer.submitted; // rejects if the request is not valid or the queue is full
  response.type('text/plain');
  // If the client leaves, the pipeline cancels the stream, which aborts the call.
  await pipeline(Readable.fromWeb(answer.toReadableStream()), response).catch(() => {});
});

app.use((error, _request, response, _next) => {
  response
    .status(error.code === 'queue_full' ? 429 : 400)
    .json({ error: { code: error.code, message: error.message } });
});
const server = app.listen(Number(process.env.PORT ?? 3000), () => {
  console.log(`http://127.0.0.1:${server.address().port}`);
});
process.once('SIGTERM', () => server.close(() => engine.close()));
