/**
 * A child process of benchmarks/gateway-peers.ts: a chat interface that sends `max_tokens` tokens at full speed.
 * It sends its port to its parent.
 */
import { createTransport } from '../../server/http/create-transport';
import type { StreamHandler } from '../../server/http/transport';

const head = { id: 'chatcmpl-0123456789', object: 'chat.completion.chunk', created: 1_800_000_000, model: 'demo' };
const event = (value: object) => `data: ${JSON.stringify({ ...head, ...value })}\n\n`;
const TOKEN = event({ choices: [{ index: 0, delta: { content: ' word' }, finish_reason: null }] });
const FINISH = event({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] });
const usage = (numTokens: number) => ({
  prompt_tokens: 9,
  completion_tokens: numTokens,
  total_tokens: 9 + numTokens,
});

const handler: StreamHandler = async (request, reply) => {
  const body = JSON.parse((await request.readBody()).toString()) as {
    max_tokens: number;
    stream?: boolean;
    stream_options?: { include_usage?: boolean };
  };
  if (body.stream !== true) {
    const message = { role: 'assistant', content: ' word' };
    const choices = [{ index: 0, message, finish_reason: 'stop' }];
    const object = { ...head, object: 'chat.completion', choices, usage: usage(1) };
    return reply.send(200, { 'Content-Type': 'application/json' }, JSON.stringify(object));
  }
  const stream = reply.stream(200, { 'Content-Type': 'text/event-stream' });
  for (let i = 0; i < body.max_tokens; i++) {
    if (!stream.write(TOKEN)) await stream.drained();
    if (i % 8 === 7) await new Promise((resolve) => setImmediate(resolve));
  }
  const last = body.stream_options?.include_usage ? event({ choices: [], usage: usage(body.max_tokens) }) : '';
  stream.write(`${FINISH}${last}data: [DONE]\n\n`);
  stream.end();
};

void (async () => {
  const transport = await createTransport('uws', {
    handler,
    maxBodyBytes: 1 << 24,
    bodyTimeoutMs: 60_000,
    streamsBodies: true,
  });
  process.on('disconnect', () => process.exit());
  process.send?.(await transport.listen('127.0.0.1', 0));
})();
