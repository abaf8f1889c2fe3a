import type { ModelTask } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { Route } from '../../http/routes';
import { countTokens, createMessage, MESSAGES_PATH } from '../anthropic/messages';
import { COUNT_TOKENS_REQUEST, MESSAGES_NULLS, MESSAGES_REQUEST } from '../anthropic/schema';
import { CHAT_PATH, INPUT_TOKENS_PATH, MODELS_PATH, RESPONSES_PATH } from '../../base/error-styles';
import { countInput } from '../responses/count-input';
import { createResponse } from '../responses/create-response';
import { RESPONSES_NULLS, RESPONSES_REQUEST } from '../responses/schema';
import { STORED_COMPLETION_ROUTES } from '../../storage/responses/stored-completions';
import { STORED_RESPONSE_ROUTES } from '../../storage/responses/stored-responses';
import { chatCompletions } from './chat';
import { completions } from './completions';
import type { OpenAiContext, ServerContext } from './context';
import { embeddings } from './embeddings';
import { getModel, listModels } from './models';
import { CHAT_NULLS, CONVERSATION_NULLS, GENERATION_NULLS, type NullMap } from '../../base/json/nulls';
import { EMBEDDING_REQUEST, RERANK_REQUEST, SCORE_REQUEST } from './pooling-schema';
import { CHAT_COMPLETION_REQUEST, COMPLETION_REQUEST, DETOKENIZE_REQUEST, TOKENIZE_REQUEST } from './schema';
import type { Schema } from '../../base/json/schema-types';
import { rerank, score } from './scoring';
import { detokenize, tokenize } from './tokenize';

export type { OpenAiContext } from './context';

/** What the OpenAPI document says of a route. */
interface Description {
  readonly summary: string;
  /** Schema of the request body. Undefined without a body. */
  readonly requestSchema?: Schema;
  /** Where null in the body means "not given". At the top level it always does. */
  readonly nulls?: NullMap;
  /** Whether the response may be a stream of server-sent events. */
  readonly canStream?: boolean;
  /** The route answers 501. */
  readonly isNotImplemented?: boolean;
}

/** A route whose body names the model that handles it. */
export interface ModelRoute extends Route<OpenAiContext>, Description {
  readonly needsModel?: true;
  /** The tasks of models that the route works with. Undefined: all. */
  readonly tasks?: readonly ModelTask[];
}

/** A route that works without the engine of a model. */
export interface ServerRoute extends Route<ServerContext>, Description {
  readonly needsModel: false;
  readonly tasks?: undefined;
}

export type OpenAiRoute = ModelRoute | ServerRoute;

/** An embedding model scores by the cosine of two embeddings. */
const SCORING_TASKS: readonly ModelTask[] = ['score', 'embed'];

export const OPENAI_ROUTES: readonly OpenAiRoute[] = [
  {
    method: 'POST',
    path: CHAT_PATH,
    handle: chatCompletions,
    summary: 'Create a chat completion',
    requestSchema: CHAT_COMPLETION_REQUEST,
    nulls: CHAT_NULLS,
    tasks: ['generate'],
    canStream: true,
  },
  ...STORED_COMPLETION_ROUTES.map((route) => ({ ...route, needsModel: false, isPrivate: true }) as const),
  {
    method: 'POST',
    path: '/v1/completions',
    handle: completions,
    summary: 'Create a text completion or score texts',
    requestSchema: COMPLETION_REQUEST,
    nulls: GENERATION_NULLS,
    tasks: ['generate'],
    canStream: true,
  },
  {
    method: 'POST',
    path: RESPONSES_PATH,
    handle: createResponse,
    summary: 'Create a response',
    requestSchema: RESPONSES_REQUEST,
    nulls: RESPONSES_NULLS,
    tasks: ['generate'],
    canStream: true,
  },
  {
    method: 'POST',
    path: INPUT_TOKENS_PATH,
    handle: countInput,
    summary: 'Count the input tokens of a response',
    requestSchema: RESPONSES_REQUEST,
    nulls: RESPONSES_NULLS,
    tasks: ['generate'],
  },
  ...STORED_RESPONSE_ROUTES.map((route) => ({ ...route, needsModel: false, isPrivate: true }) as const),
  {
    method: 'POST',
    path: MESSAGES_PATH,
    handle: createMessage,
    summary: 'Create a message, as Anthropic does',
    requestSchema: MESSAGES_REQUEST,
    nulls: MESSAGES_NULLS,
    tasks: ['generate'],
    canStream: true,
  },
  {
    method: 'POST',
    path: `${MESSAGES_PATH}/count_tokens`,
    handle: countTokens,
    summary: 'Count the tokens of a message, as Anthropic does',
    requestSchema: COUNT_TOKENS_REQUEST,
    nulls: MESSAGES_NULLS,
    tasks: ['generate'],
  },
  {
    method: 'POST',
    path: '/v1/embeddings',
    handle: embeddings,
    summary: 'Compute the embeddings of texts, or of a conversation',
    requestSchema: EMBEDDING_REQUEST,
    nulls: CONVERSATION_NULLS,
    tasks: ['embed'],
  },
  ...['/v1/rerank', '/v2/rerank', '/rerank'].map((path) => ({
    method: 'POST' as const,
    path,
    handle: rerank,
    summary: 'Sort documents by their relevance to a query',
    requestSchema: RERANK_REQUEST,
    tasks: SCORING_TASKS,
  })),
  ...['/v1/score', '/score'].map((path) => ({
    method: 'POST' as const,
    path,
    handle: score,
    summary: 'Score pairs of texts',
    requestSchema: SCORE_REQUEST,
    tasks: SCORING_TASKS,
  })),
  {
    method: 'POST',
    path: '/tokenize',
    handle: tokenize,
    summary: 'Tokenize a text or a conversation',
    requestSchema: TOKENIZE_REQUEST,
    nulls: CONVERSATION_NULLS,
  },
  {
    method: 'POST',
    path: '/detokenize',
    handle: detokenize,
    summary: 'Convert tokens to text',
    requestSchema: DETOKENIZE_REQUEST,
  },
  { method: 'GET', path: MODELS_PATH, handle: listModels, summary: 'List the served models', needsModel: false },
  {
    method: 'GET',
    path: `${MODELS_PATH}/{model}`,
    handle: getModel,
    summary: 'Get a served model',
    needsModel: false,
  },
  ...[
    'POST /v1/chat/completions/render',
    'POST /v1/responses/compact',
    'POST /apply-template',
    'GET /load',
    'GET /slots',
    'GET /props',
    'POST /infill',
  ].map(notImplemented),
];

function notImplemented(route: string): ServerRoute {
  const [method, path] = route.split(' ') as ['GET' | 'POST', string];
  const handle = () => {
    throw new ApiError('not_implemented', `${path} is not implemented in this version of the server`);
  };
  return { method, path, handle, summary: 'Not implemented', isNotImplemented: true, needsModel: false };
}
