import { ApiError } from '../errors';
import type { Route } from '../routes';
import { chatCompletions } from './chat';
import { completions } from './completions';
import type { OpenAiContext } from './context';
import { getModel, listModels, MODELS_PATH } from './models';
import { CHAT_NULLS, CONVERSATION_NULLS, GENERATION_NULLS, type NullMap } from './nulls';
import {
  CHAT_COMPLETION_REQUEST,
  COMPLETION_REQUEST,
  DETOKENIZE_REQUEST,
  type Schema,
  TOKENIZE_REQUEST,
} from './schema';
import { detokenize, tokenize } from './tokenize';

export type { OpenAiContext } from './context';

/** A route, and what its description says of it. */
export interface OpenAiRoute extends Route<OpenAiContext> {
  readonly summary: string;
  /** Of its body; undefined without one. */
  readonly requestSchema?: Schema;
  /** Where its body may hold null for "not given"; at the top always. */
  readonly nulls?: NullMap;
  /** It may answer by server-sent events. */
  readonly canStream?: boolean;
  /** Known by name alone: answers 501. */
  readonly isNotImplemented?: boolean;
}

export const OPENAI_ROUTES: readonly OpenAiRoute[] = [
  {
    method: 'POST',
    path: '/v1/chat/completions',
    handle: chatCompletions,
    summary: 'Answer a conversation',
    requestSchema: CHAT_COMPLETION_REQUEST,
    nulls: CHAT_NULLS,
    canStream: true,
  },
  {
    method: 'POST',
    path: '/v1/completions',
    handle: completions,
    summary: 'Complete or score texts',
    requestSchema: COMPLETION_REQUEST,
    nulls: GENERATION_NULLS,
    canStream: true,
  },
  {
    method: 'POST',
    path: '/tokenize',
    handle: tokenize,
    summary: 'The tokens of a text or a conversation',
    requestSchema: TOKENIZE_REQUEST,
    nulls: CONVERSATION_NULLS,
  },
  {
    method: 'POST',
    path: '/detokenize',
    handle: detokenize,
    summary: 'The text of tokens',
    requestSchema: DETOKENIZE_REQUEST,
  },
  { method: 'GET', path: MODELS_PATH, handle: listModels, summary: 'The models that are served' },
  { method: 'GET', path: `${MODELS_PATH}/{model}`, handle: getModel, summary: 'One of the models that are served' },
  ...[
    'POST /v1/embeddings',
    'POST /v1/responses',
    'POST /v1/messages',
    'POST /v1/chat/completions/render',
    'POST /apply-template',
    'GET /load',
    'POST /sleep',
    'POST /wake_up',
    'GET /is_sleeping',
    'POST /v1/load_lora_adapter',
    'POST /v1/unload_lora_adapter',
    'GET /slots',
    'GET /props',
    'POST /infill',
    'POST /rerank',
    'POST /score',
  ].map(notImplemented),
];

function notImplemented(route: string): OpenAiRoute {
  const [method, path] = route.split(' ') as ['GET' | 'POST', string];
  const handle = () => {
    throw new ApiError('not_implemented', `${path} is not implemented by this version of the server`);
  };
  return { method, path, handle, summary: 'Not implemented', isNotImplemented: true };
}
