import type { ParseLimits } from '../settings';
import { type ChatCall, parseChatRequest } from './chat-request';
import { type CompletionCall, parseCompletionRequest } from './completion-request';
import { type EmbeddingCall, parseEmbeddingRequest } from './embedding-request';
import { type JsonText, parseJsonText } from '../../base/json/json-text';
import { type MessagesCall, parseCountTokensRequest, parseMessagesRequest } from '../anthropic/request';
import { parseResponsesRequest, type ResponsesCall } from '../responses/request';
import type { Prompt } from './prompts';
import { parseRerankRequest, parseScoreRequest, type RerankCall, type ScoreCall } from './scoring-request';
import {
  type DetokenizeCall,
  parseDetokenizeRequest,
  parseTokenizeRequest,
  type TokenizeCall,
} from './tokenize-request';

/** What the body of each kind of request becomes. */
export interface Calls {
  chat: ChatCall;
  responses: ResponsesCall;
  messages: MessagesCall;
  countTokens: MessagesCall;
  completion: CompletionCall;
  tokenize: TokenizeCall;
  detokenize: DetokenizeCall;
  embedding: EmbeddingCall;
  rerank: RerankCall;
  score: ScoreCall;
}

type Parsers = { [Kind in keyof Calls]: (json: JsonText, limits: ParseLimits) => Promise<Calls[Kind]> };

const PARSERS: Parsers = {
  chat: parseChatRequest,
  responses: parseResponsesRequest,
  messages: parseMessagesRequest,
  countTokens: parseCountTokensRequest,
  completion: parseCompletionRequest,
  tokenize: parseTokenizeRequest,
  detokenize: parseDetokenizeRequest,
  embedding: parseEmbeddingRequest,
  rerank: parseRerankRequest,
  score: parseScoreRequest,
};

/** Parses and checks a body. Throws an ApiError that names the first invalid field. */
export async function parseBody<Kind extends keyof Calls>(
  kind: Kind,
  body: Uint8Array,
  limits: ParseLimits,
): Promise<Calls[Kind]> {
  return PARSERS[kind](parseJsonText(Buffer.from(body.buffer, body.byteOffset, body.byteLength)), limits);
}

/**
 * Returns a call in which the large parts of the request have forms that are cheap to send to another thread: messages
 * as JSON text in shared memory, token ids as typed arrays.
 */
export function compact<Kind extends keyof Calls>(kind: Kind, call: Calls[Kind]): Calls[Kind] {
  if ('messages' in call) return compactMessages(call) as Calls[Kind];
  if (kind === 'completion') {
    const { prompts, ...rest } = call as CompletionCall;
    return { ...rest, prompts: compactPrompts(prompts) } as Calls[Kind];
  }
  if (kind === 'embedding') {
    const { inputs, ...rest } = call as EmbeddingCall;
    return { ...rest, inputs: compactPrompts(inputs) } as Calls[Kind];
  }
  if (kind === 'detokenize') return compactTokens(call as DetokenizeCall) as Calls[Kind];
  return call;
}

function compactMessages<Call extends Partial<Pick<ChatCall, 'messages'>>>(call: Call): Call {
  return call.messages === undefined ? call : { ...call, messages: { json: toShared(JSON.stringify(call.messages)) } };
}

/** Returns the UTF-8 bytes of a text in memory that threads share. */
function toShared(text: string): Uint8Array {
  const memory = new SharedArrayBuffer(Buffer.byteLength(text));
  Buffer.from(memory).write(text);
  return new Uint8Array(memory);
}

function compactPrompts(prompts: readonly Prompt[]): Prompt[] {
  return prompts.map((prompt) => (Array.isArray(prompt) ? toTyped(prompt) : prompt));
}

function compactTokens(call: DetokenizeCall): DetokenizeCall {
  return { ...call, tokens: Array.isArray(call.tokens) ? toTyped(call.tokens) : call.tokens };
}

/** Ids that a typed array cannot hold are not converted, so that the error names them. */
function toTyped(ids: number[]): number[] | Int32Array {
  return ids.every((id) => id < 2 ** 31) ? Int32Array.from(ids) : ids;
}
