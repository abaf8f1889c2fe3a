import type { Engine } from '../../../ts';
import type { SseOptions } from '../../http/sse';
import type { Log } from '../../base/log';
import type { RequestContext } from '../../http/routes';
import type { ServedModels } from '../models/served-models';
import type { ServerSettings } from '../settings';
import type { ResponseStore } from '../../storage/responses/store';
import type { ServedModel } from './models';

/** What the handlers of the inference interface receive in addition to the request. */
export interface ServerContext extends RequestContext {
  readonly models: ServedModels;
  readonly sse: SseOptions;
  readonly log: Log;
  readonly settings: ServerSettings;
  /** Undefined: this server stores no responses for the client. */
  readonly responses: ResponseStore | undefined;
}

/** What the handlers of requests to a model receive: `withModel` has found it, and keeps it loaded until they end. */
export interface OpenAiContext extends ServerContext {
  readonly engine: Engine;
  readonly model: ServedModel;
}
