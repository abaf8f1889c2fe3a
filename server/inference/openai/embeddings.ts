import type { HttpReply, HttpRequest } from '../../http/transport';
import { cacheSaltOf, resolveRequestId, toClientError } from './call';
import type { OpenAiContext } from './context';
import { embeddingsText } from './embedding-response';
import { readCall } from './read-call';
import { sendJsonText } from './send-json';
import { poolingUsage } from './usage';

/** POST /v1/embeddings */
export async function embeddings(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { engine, model, identity, signal, reportsUsage = false } = context;
  const call = await readCall('embedding', request, context);
  const requestId = resolveRequestId(context, request, call.requestId);
  const head = {
    id: `embd-${requestId}`,
    created: Math.floor(Date.now() / 1000),
    model: model.responseName(call.model),
  };
  try {
    engine.checkCapacity();
    const inputs = call.inputs.map((input) => (typeof input === 'string' ? input : Array.from(input)));
    const result = await engine.embed(inputs, {
      ...call.options,
      signal,
      requestId: head.id,
      cacheSalt: cacheSaltOf(identity, call.cacheSalt),
    });
    const usage = poolingUsage(result.usage);
    identity.done(usage.totalTokens);
    const text = await embeddingsText(head, result.embeddings, usage, {
      isBase64: call.isBase64,
      hasPrefixCache: engine.info.prefixCache,
    });
    sendJsonText(reply, text, requestId, reportsUsage ? usage : undefined);
  } catch (error) {
    throw toClientError(error, { inputs: 'input', prompt: 'input' });
  }
}
