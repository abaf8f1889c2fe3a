import type { Generation } from '../../../ts';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { callContext, toClientError, resolveRequestId, streamReply } from './call';
import type { CompletionHead } from './chat-response';
import type { CompletionCall } from './completion-request';
import {
  completionChoices,
  completionChunk,
  type CompletionStyle,
  type EchoedPrompt,
  textCompletion,
} from './completion-response';
import { CompletionChunks, type TokenCount } from './completion-stream';
import type { OpenAiContext } from './context';
import { sendJson } from '../../http/send-json';
import { TokenWords } from './logprobs';
import type { Prompt } from './prompts';
import { readCall } from './read-call';
import { readyEvents } from './ready-events';
import { addUsages, wireUsage } from './usage';

/** One submitted prompt of a request. */
interface RunningPrompt {
  generation: Generation;
  prompt: EchoedPrompt;
}

/** POST /v1/completions. Throws errors before the first byte. Later errors are events of the stream. */
export async function completions(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { engine, model, identity, reportsUsage = false } = context;
  const call = await readCall('completion', request, context);
  const requestId = resolveRequestId(context, request, call.requestId);
  const head: CompletionHead = {
    id: `cmpl-${requestId}`,
    created: Math.floor(Date.now() / 1000),
    model: model.responseName(call.model),
  };
  const style: CompletionStyle = {
    engine,
    words: new TokenWords(engine, call.tokensAsIds),
    hasPrefixCache: engine.info.prefixCache,
  };
  const count: TokenCount = { prompt: 0, completion: 0 };
  const generations: Generation[] = [];
  try {
    engine.checkCapacity(context);
    for (const prompt of call.prompts) generations.push(start(context, call, prompt, head.id));
    const running = await Promise.all(
      generations.map((generation, i) => submitted(context, call, call.prompts[i], generation)),
    );
    for (const { prompt } of running) count.prompt += prompt.tokenIds.length;
    if (call.isStream) return await stream(context, request, reply, { call, head, style, running, count, requestId });
    const results = await Promise.all(running.map(({ generation }) => generation.result()));
    const choices = results.flatMap((result, i) =>
      completionChoices(call, result, running[i].prompt, i * result.choices.length, style),
    );
    const usages = results.map(({ usage }) => usage);
    sendJson(
      reply,
      textCompletion(head, choices, usages, style),
      requestId,
      reportsUsage ? addUsages(usages) : undefined,
    );
  } catch (error) {
    throw toClientError(error, call.names);
  } finally {
    for (const generation of generations) generation.abort();
    identity.done(generations.reduce((sum, { numTokens }) => sum + numTokens, 0));
  }
}

function start(
  context: OpenAiContext,
  { model: requested, sampling, cacheSalt }: CompletionCall,
  prompt: Prompt,
  requestId: string,
): Generation {
  const adapter = context.model.adapterOf(requested);
  const options = adapter === undefined ? sampling : { ...sampling, adapter };
  return context.engine.generate(prompt, options, callContext(context, requestId, cacheSalt));
}

async function submitted(
  { engine }: OpenAiContext,
  { sampling }: CompletionCall,
  prompt: Prompt,
  generation: Generation,
): Promise<RunningPrompt> {
  const { promptTokenIds } = await generation.submitted;
  const isUnchanged = typeof prompt === 'string' && sampling.truncatePrompt === undefined;
  return {
    generation,
    prompt: {
      text: isUnchanged ? prompt : engine.detokenize(promptTokenIds, { skipSpecialTokens: false }),
      tokenIds: promptTokenIds,
    },
  };
}

interface Streaming {
  call: CompletionCall;
  head: CompletionHead;
  style: CompletionStyle;
  running: readonly RunningPrompt[];
  count: TokenCount;
  requestId: string;
}

/** Streams all prompts concurrently. If one fails, all end. */
function stream(
  context: OpenAiContext,
  request: HttpRequest,
  reply: HttpReply,
  { call, head, style, running, count, requestId }: Streaming,
): Promise<void> {
  return streamReply(context, request, reply, requestId, async (sse) => {
    const sendAll = running.map(async ({ generation, prompt }, i) => {
      const chunks = new CompletionChunks({ head, call, style, prompt, count, firstIndex: i * (call.sampling.n ?? 1) });
      for await (const events of readyEvents(generation)) {
        const data = chunks.take(events, generation.promptLogprobs);
        if (data.length > 0) await sse.send(...data);
      }
    });
    try {
      await Promise.all(sendAll);
    } catch (error) {
      // No event may follow the error.
      for (const { generation } of running) generation.abort();
      await Promise.allSettled(sendAll);
      throw error;
    }
    const { reportsUsage = false } = context;
    if (!call.usage.isAtEnd && !reportsUsage) return;
    const results = await Promise.all(running.map(({ generation }) => generation.result()));
    const usage = addUsages(results.map((result) => result.usage));
    if (call.usage.isAtEnd) await sse.send(completionChunk(head, [], wireUsage(usage, style.hasPrefixCache)));
    return reportsUsage ? usage : undefined;
  });
}
