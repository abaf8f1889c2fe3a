import type { ChatEvent, Engine, Generation } from '../../ts';
import { ApiError, renderError, toApiError } from '../errors';
import { ClientTooSlow, type SseOptions, SseStream } from '../http/sse';
import { header, type HttpReply, type HttpRequest } from '../http/transport';
import type { Log } from '../log';
import { type ChatCall, parseChatRequest } from './chat-request';
import { type AnswerHead, chatCompletion, chunk, deltaChoice, finishChoice, toolCallDeltas, toWireUsage, wireLogprobs, wireUsage } from './chat-response';
import { readJson } from './json-body';
import type { ServedModel } from './models';
import type { CallContext, CallIdentity } from '../routes';

export interface ChatContext extends CallContext {
  readonly engine: Pick<Engine, 'chat' | 'info' | 'tokenBytes'>;
  readonly model: ServedModel;
  readonly sse: SseOptions;
  readonly log: Log;
}

/** POST /v1/chat/completions. Errors before the first byte are thrown; later ones are events of the stream. */
export async function chatCompletions(context: ChatContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { engine, model, identity } = context;
  const call = await parseChatRequest(await readJson(request));
  const requestId = requestIdOf(context, request, call);
  const head: AnswerHead = { id: `chatcmpl-${requestId}`, created: Math.floor(Date.now() / 1000), model: model.answerName(call.model) };
  const generation = engine.chat(call.messages, call.options, { signal: context.signal, requestId: head.id, cacheSalt: cacheSaltOf(identity, call) });
  try {
    const { promptTokens } = await generation.submitted;
    if (call.isStream) return await stream(context, { head, call, generation, promptTokens, requestId, signal: request.signal }, reply);
    const { choices, usage } = await generation.result();
    identity.done(usage.promptTokens + usage.completionTokens);
    const body = chatCompletion(head, choices, toWireUsage(usage, engine.info.prefixCache), (id) => engine.tokenBytes(id));
    reply.send(200, { 'Content-Type': 'application/json', 'X-Request-Id': requestId }, JSON.stringify(body));
  } catch (error) {
    throw inClientsWords(error, call);
  }
}

interface Streaming {
  head: AnswerHead;
  call: ChatCall;
  generation: Generation<ChatEvent>;
  promptTokens: number;
  requestId: string;
  signal: AbortSignal;
}

async function stream(context: ChatContext, streaming: Streaming, reply: HttpReply): Promise<void> {
  const { generation, requestId, signal } = streaming;
  const sse = new SseStream(reply, { 'X-Request-Id': requestId }, context.sse);
  try {
    await sendEvents(context, streaming, sse);
    await sse.finish();
  } catch (error) {
    if (error instanceof ClientTooSlow || signal.aborted) return sse.destroy();
    const apiError = toApiError(error);
    if (apiError.status === 500) context.log.error({ requestId, err: apiError.cause ?? apiError }, 'a stream ended with an error');
    await sse.send(renderError(apiError)).then(() => sse.finish()).catch(() => sse.destroy());
  } finally {
    generation.abort();
  }
}

async function sendEvents({ engine, identity }: ChatContext, { head, call, generation, promptTokens }: Streaming, sse: SseStream): Promise<void> {
  const numChoices = call.options.n ?? 1;
  let completionTokens = 0;
  const send = (...choices: object[]) => {
    const usage = call.continuousUsage ? wireUsage(promptTokens, completionTokens, null) : undefined;
    return sse.send(...choices.map((choice) => chunk(head, [choice], usage)));
  };
  const begun = new Set<string>();
  await send(...Array.from({ length: numChoices }, (_, index) => deltaChoice(index, { role: 'assistant', content: '' })));
  for await (const event of generation) {
    if (event.type === 'delta') {
      completionTokens += event.tokenIds.length;
      const logprobs = event.logprobs === undefined || event.logprobs.length === 0 ? null : wireLogprobs(event.logprobs, (id) => engine.tokenBytes(id));
      // Without text only the tokens' log-probabilities would be lost.
      if (event.textDelta !== '') await send(deltaChoice(event.index, { content: event.textDelta }, logprobs));
      else if (logprobs !== null) await send(deltaChoice(event.index, {}, logprobs));
    } else if (event.type === 'reasoning') {
      await send(deltaChoice(event.index, { reasoning_content: event.textDelta, reasoning: event.textDelta }));
    } else if (event.type === 'toolCall') {
      const isFirst = !begun.has(event.id);
      begun.add(event.id);
      await send(...toolCallDeltas(event, isFirst).map((delta) => deltaChoice(event.index, delta)));
    } else {
      await send(finishChoice(event));
    }
  }
  identity.done(promptTokens + completionTokens);
  if (call.includeUsage) await sse.send(chunk(head, [], toWireUsage((await generation.result()).usage, engine.info.prefixCache)));
}

/** The header's id goes before the body's, and that before a random one. */
function requestIdOf(context: ChatContext, request: HttpRequest, call: ChatCall): string {
  if (header(request, 'x-request-id') === context.requestId) return context.requestId;
  return call.requestId !== undefined && /^[\x21-\x7e]{1,128}$/.test(call.requestId) ? call.requestId : context.requestId;
}

/** Owners share nothing, whatever salts their clients choose; a client's salt holds no slash. */
function cacheSaltOf({ cacheSalt: owner }: CallIdentity, { cacheSalt: own = '' }: ChatCall): string {
  return owner === '' ? own : `${owner}/${own}`;
}

/** The library knows one `prompt` and one `maxTokens`. */
function inClientsWords(error: unknown, call: ChatCall): ApiError {
  const apiError = toApiError(error);
  const param = apiError.param === 'prompt' ? 'messages' : apiError.param === 'max_tokens' ? call.maxTokensParam : apiError.param;
  return param === apiError.param ? apiError : new ApiError(apiError.code, apiError.message, { param, cause: apiError.cause });
}
