import type { Engine } from '../../ts';
import type { SseOptions } from '../http/sse';
import type { Log } from '../log';
import type { CallContext, Route } from '../routes';
import type { ServerSettings } from '../settings';
import { chatCompletions } from './chat';
import { getModel, listModels, MODELS_PATH, type ServedModel } from './models';

/** What the routes of the inference interface need. */
export interface OpenAiContext extends CallContext {
  readonly engine: Engine;
  readonly model: ServedModel;
  readonly sse: SseOptions;
  readonly log: Log;
  readonly settings: ServerSettings;
}

export const OPENAI_ROUTES: readonly Route<OpenAiContext>[] = [
  { method: 'POST', path: '/v1/chat/completions', handle: chatCompletions },
  { method: 'GET', path: MODELS_PATH, handle: listModels },
  { method: 'GET', path: `${MODELS_PATH}/{model}`, handle: getModel },
];
