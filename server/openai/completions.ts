import type { Generation } from '../../ts';
import type { HttpReply, HttpRequest } from '../http/transport';
import { cacheSaltOf, inClientsWords, requestIdOf, streamReply } from './call';
import type { AnswerHead } from './chat-response';
import { type CompletionCall, parseCompletionRequest, type Prompt } from './completion-request';
import {
  completionChoices,
  completionChunk,
  type CompletionStyle,
  type EchoedPrompt,
  textCompletion,
} from './completion-response';
import { CompletionChunks, type TokenCount } from './completion-stream';
import type { OpenAiContext } from './context';
import { sendJson } from './json-answer';
import { readJson } from './json-body';
import { TokenWords } from './logprobs';
import { readyEvents } from './ready-events';
import { addUsages, wireUsage } from './usage';

/** One prompt of a request, taken by the engine. */
interface Running {
  generation: Generation;
  prompt: EchoedPrompt;
}

/** POST /v1/completions. Errors before the first byte are thrown; later ones are events of the stream. */
export async function completions(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { engine, model, identity, settings, tellsUsage = false } = context;
  const call = await parseCompletionRequest(await readJson(request), settings, engine.info.vocabSize);
  const requestId = requestIdOf(context, request, call.requestId);
  const head: AnswerHead = {
    id: `cmpl-${requestId}`,
    created: Math.floor(Date.now() / 1000),
    model: model.answerName(call.model),
  };
  const style: CompletionStyle = {
    engine,
    words: new TokenWords(engine, call.tokensAsIds),
    hasPrefixCache: engine.info.prefixCache,
  };
  const count: TokenCount = { prompt: 0, completion: 0 };
  const generations: Generation[] = [];
  try {
    engine.checkRoom();
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
      tellsUsage ? addUsages(usages) : undefined,
    );
  } catch (error) {
    throw inClientsWords(error, call.names);
  } finally {
    for (const generation of generations) generation.abort();
    identity.done(generations.reduce((sum, { numTokens }) => sum + numTokens, 0));
  }
}

function start(
  { engine, identity, signal }: OpenAiContext,
  { sampling, cacheSalt }: CompletionCall,
  prompt: Prompt,
  requestId: string,
): Generation {
  return engine.generate(prompt, sampling, { signal, requestId, cacheSalt: cacheSaltOf(identity, cacheSalt) });
}

async function submitted(
  { engine }: OpenAiContext,
  { sampling }: CompletionCall,
  prompt: Prompt,
  generation: Generation,
): Promise<Running> {
  const { promptTokenIds } = await generation.submitted;
  const isWhole = typeof prompt === 'string' && sampling.truncatePrompt === undefined;
  return {
    generation,
    prompt: {
      text: isWhole ? prompt : engine.detokenize(promptTokenIds, { skipSpecialTokens: false }),
      tokenIds: promptTokenIds,
    },
  };
}

interface Streaming {
  call: CompletionCall;
  head: AnswerHead;
  style: CompletionStyle;
  running: readonly Running[];
  count: TokenCount;
  requestId: string;
}

/** The streams of all prompts side by side; one that fails ends them all. */
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
      // Nothing may follow the error.
      for (const { generation } of running) generation.abort();
      await Promise.allSettled(sendAll);
      throw error;
    }
    const { tellsUsage = false } = context;
    if (!call.usage.isAtEnd && !tellsUsage) return;
    const results = await Promise.all(running.map(({ generation }) => generation.result()));
    const usage = addUsages(results.map((result) => result.usage));
    if (call.usage.isAtEnd) await sse.send(completionChunk(head, [], wireUsage(usage, style.hasPrefixCache)));
    return tellsUsage ? usage : undefined;
  });
}
