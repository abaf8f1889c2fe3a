import type { Engine } from '../../../ts';
import type { SseOptions } from '../../http/sse';
import type { Log } from '../../base/log';
import type { RequestContext } from '../../http/routes';
import type { ServerSettings } from '../settings';
import type { ResponseStore } from '../responses/store';
import type { ServedModel } from './models';

/** What the handlers of the inference interface receive in addition to the request. */
export interface OpenAiContext extends RequestContext {
  readonly engine: Engine;
  readonly model: ServedModel;
  readonly sse: SseOptions;
  readonly log: Log;
  readonly settings: ServerSettings;
  /** Undefined: this server keeps no responses. */
  readonly responses: ResponseStore | undefined;
}
