import type { Engine } from '../../ts';
import type { SseOptions } from '../http/sse';
import type { Log } from '../log';
import type { CallContext } from '../routes';
import type { ServerSettings } from '../settings';
import type { ServedModel } from './models';

/** What the handlers of the inference interface are given beside the request. */
export interface OpenAiContext extends CallContext {
  readonly engine: Engine;
  readonly model: ServedModel;
  readonly sse: SseOptions;
  readonly log: Log;
  readonly settings: ServerSettings;
}
