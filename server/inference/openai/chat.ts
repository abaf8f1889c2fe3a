import type { GenerationResult } from '../../../ts';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { resolveRequestId, streamReply } from './call';
import type { ChatCall } from './chat-request';
import { type CompletionHead, type ChatStyle, chatChunk, chatCompletion, type PromptEcho } from './chat-response';
import { ChatChunks } from './chat-stream';
import type { OpenAiContext } from './context';
import { generateChat } from '../conversation/generate-chat';
import { withToolPaths } from '../conversation/tools';
import { sendJson } from '../../http/send-json';
import { TokenWords } from './logprobs';
import { readCall } from './read-call';
import { readyEvents } from './ready-events';
import { wireUsage } from './usage';
import { Completions } from '../../storage/responses/completions';
import { newCompletionId } from '../../storage/responses/ids';

/** POST /v1/chat/completions. Throws errors before the first byte. Later errors are events of the stream. */
export async function chatCompletions(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { engine, model, settings, responses, identity, log, reportsUsage = false } = context;
  const call = await readCall('chat', request, context);
  const requestId = resolveRequestId(context, request, call.requestId);
  const stored = responses === undefined ? undefined : call.stored;
  const head: CompletionHead = {
    id: stored === undefined ? `chatcmpl-${requestId}` : newCompletionId(),
    created: Math.floor(Date.now() / 1000),
    model: model.responseName(call.model),
  };
  const style: ChatStyle = {
    role: settings.responseRole,
    hasPrefixCache: engine.info.prefixCache,
    words: new TokenWords(engine, call.tokensAsIds),
  };
  try {
    await generateChat(context, call, head.id, async (generation, { promptTokens, promptTokenIds }) => {
      const prompt = await promptEcho(context, call, promptTokenIds);
      /** Returns the completion, stored if it is to be. */
      const complete = async (result: GenerationResult): Promise<object> => {
        const completion = chatCompletion(head, call, result, prompt, style);
        if (stored !== undefined)
          await new Completions(responses, identity).keep({ ...completion, id: head.id }, stored, { requestId, log });
        return completion;
      };
      if (!call.isStream) {
        const result = await generation.result();
        return sendJson(reply, await complete(result), requestId, reportsUsage ? result.usage : undefined);
      }
      const chunks = new ChatChunks(head, call, promptTokens, style);
      await streamReply(context, request, reply, requestId, async (sse) => {
        await sse.send(...chunks.begin(prompt));
        for await (const events of readyEvents(generation)) {
          const data = chunks.take(events);
          if (data.length > 0) await sse.send(...data);
        }
        if (!call.usage.isAtEnd && !reportsUsage && stored === undefined) return;
        const result = await generation.result();
        if (stored !== undefined) await complete(result);
        const { usage } = result;
        if (call.usage.isAtEnd) await sse.send(chatChunk(head, [], wireUsage(usage, style.hasPrefixCache)));
        return reportsUsage ? usage : undefined;
      });
    });
  } catch (error) {
    throw withToolPaths(error, call.toolPaths, 'parameters');
  }
}

async function promptEcho(
  { engine, signal }: OpenAiContext,
  { messages, options, returnsTokenIds, returnsPromptText }: ChatCall,
  promptTokenIds: Int32Array,
): Promise<PromptEcho> {
  return {
    tokenIds: returnsTokenIds ? promptTokenIds : undefined,
    text: returnsPromptText ? await engine.renderChat(messages, options, { signal }) : undefined,
  };
}
