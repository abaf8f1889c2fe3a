import type { HttpReply, HttpRequest } from '../../http/transport';
import { cacheSaltOf, resolveRequestId } from './call';
import type { OpenAiContext } from './context';
import type { EmbeddingCall } from './embedding-request';
import { checkFloatValues, embeddingsText } from './embedding-response';
import { toPoolingError, withTokenCount } from './pooling-call';
import { readCall } from './read-call';
import { sendJsonText } from '../../http/send-json';
import type { Prompt } from './prompts';
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
    if (!call.isBase64)
      checkFloatValues(Math.max(call.inputs.length, 1), call.options.dimensions ?? engine.info.embeddingSize ?? 0);
    const inputs = await inputsOf(context, call);
    const result = await withTokenCount(context, (onTokens) =>
      engine.embed(inputs, {
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
    throw toPoolingError(error, { inputs: call.messages === undefined ? 'input' : 'messages' });
  }
}

/** Returns the token ids of a conversation, or the inputs of the request. */
async function inputsOf({ engine, signal }: OpenAiContext, call: EmbeddingCall): Promise<Prompt[]> {
  const { inputs, messages, chatOptions, addSpecialTokens } = call;
  if (messages === undefined) return inputs;
  const text = await engine.renderChat(messages, chatOptions, { signal });
  return [await engine.tokenize(text, { addSpecialTokens }, { signal })];
}
