import type { EngineInfo } from '../../../ts';
import { ApiError } from '../../base/errors';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { sendJson } from './send-json';
import { show } from './validate';

/** Limit of the names in an error message. */
const MAX_LISTED_NAMES = 3;

type DescribedInfo = Pick<EngineInfo, 'maxModelLen' | 'samplingDefaults' | 'task' | 'embeddingSize' | 'promptNames'>;

/** The served names of one engine. */
export class ServedModel {
  readonly names: readonly [string, ...string[]];
  readonly #info: DescribedInfo;
  readonly #created = Math.floor(Date.now() / 1000);

  constructor(names: readonly [string, ...string[]], info: DescribedInfo) {
    this.names = names;
    this.#info = info;
  }

  /**
   * Returns the `model` of a response: the requested name, by default the first. Throws an ApiError for an unknown
   * name.
   */
  responseName(requested: string | undefined): string {
    const name = requested ?? this.names[0];
    if (!this.names.includes(name)) throw this.#notFound(name);
    return name;
  }

  list(): object {
    return { object: 'list', data: this.names.map((name) => this.describe(name)) };
  }

  describe(name: string): object {
    if (!this.names.includes(name)) throw this.#notFound(name);
    const { maxModelLen, task } = this.#info;
    const generates = task === 'generate';
    return {
      id: name,
      object: 'model',
      created: this.#created,
      owned_by: 'capstan',
      root: this.names[0],
      parent: null,
      max_model_len: maxModelLen,
      permission: [
        {
          id: `modelperm-${name}`,
          object: 'model_permission',
          created: this.#created,
          allow_create_engine: false,
          allow_sampling: generates,
          allow_logprobs: generates,
          allow_search_indices: false,
          allow_view: true,
          allow_fine_tuning: false,
          organization: '*',
          group: null,
          is_blocking: false,
        },
      ],
      meta: modelMeta(this.#info),
    };
  }

  #notFound(name: string): ApiError {
    const served = this.names.slice(0, MAX_LISTED_NAMES).map(show).join(', ');
    return new ApiError('model_not_found', `model: expected one of ${served}, got ${show(name)}`, { param: 'model' });
  }
}

/** What clients want to know of a model besides the fields of OpenAI and vLLM. */
function modelMeta({ task, samplingDefaults, embeddingSize, promptNames }: DescribedInfo): object {
  if (task !== 'generate')
    return {
      task,
      ...(embeddingSize === undefined ? {} : { embedding_size: embeddingSize }),
      ...(promptNames === undefined ? {} : { prompt_names: promptNames }),
    };
  return {
    task,
    default_sampling: {
      temperature: samplingDefaults.temperature ?? 1,
      top_p: samplingDefaults.topP ?? 1,
      top_k: samplingDefaults.topK ?? 0,
      repetition_penalty: samplingDefaults.repetitionPenalty ?? 1,
    },
  };
}

export const MODELS_PATH = '/v1/models';

/** GET /v1/models */
export function listModels({ model }: { model: ServedModel }, _request: HttpRequest, reply: HttpReply): void {
  sendJson(reply, model.list());
}

/** GET /v1/models/{model}. Names may contain slashes, encoded or not. */
export function getModel({ model }: { model: ServedModel }, request: HttpRequest, reply: HttpReply): void {
  sendJson(reply, model.describe(decode(request.path.slice(MODELS_PATH.length + 1))));
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
