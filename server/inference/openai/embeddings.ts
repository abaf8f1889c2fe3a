import type { HttpReply, HttpRequest } from '../../http/transport';
import { cacheSaltOf, resolveRequestId } from './call';
import type { OpenAiContext } from './context';
import { checkFloatValues, embeddingsText } from './embedding-response';
import { toPoolingError, withTokenCount } from './pooling-call';
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
    engine.checkCapacity(context);
    if (!call.isBase64) checkFloatValues(call.inputs.length, call.options.dimensions ?? engine.info.embeddingSize ?? 0);
    const result = await withTokenCount(context, (onTokens) =>
      engine.embed(call.inputs, {
        ...call.options,
        signal,
        requestId: head.id,
        cacheSalt: cacheSaltOf(identity, call.cacheSalt),
        priority: context.priority ?? 0,
        onTokens,
      }),
    );
    const usage = poolingUsage(result.usage);
    const text = await embeddingsText(head, result.embeddings, usage, {
      isBase64: call.isBase64,
      hasPrefixCache: engine.info.prefixCache,
    });
    sendJsonText(reply, text, requestId, reportsUsage ? usage : undefined);
  } catch (error) {
    throw toPoolingError(error, { inputs: 'input' });
  }
}
