import { basename } from 'node:path';
import { type AdapterInfo, CapstanError, type EngineInfo, type ModelTask } from '../../../ts';
import { isAnthropicRequest, MODELS_PATH } from '../../base/error-styles';
import { ApiError } from '../../base/errors';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { anthropicModel, anthropicModelPage, type ListedModel } from '../anthropic/models';
import type { ModelState } from '../models/model-pool';
import { sendJson } from '../../http/send-json';
import { show } from '../../base/json/validate';

/** Limit of the names in an error message. */
const MAX_LISTED_NAMES = 3;

/** What the list of models needs of an engine. */
export interface ListedEngine {
  readonly info: Pick<EngineInfo, 'maxModelLen' | 'samplingDefaults' | 'task' | 'embeddingSize' | 'promptNames'>;
  readonly adapters: readonly Pick<AdapterInfo, 'name' | 'path'>[];
  unloadAdapter(name: string): void;
  /** Whether the model is in memory. Undefined: it always is. */
  readonly status?: ModelStatus;
}

/** An item of the list of models. */
export type ModelItem = ListedModel & Readonly<Record<string, unknown>>;

/** The status of a model, with the values of llama.cpp. */
export interface ModelStatus {
  value: ModelState;
  /** The last load failed. */
  failed?: true;
}

/** The served names of one engine: those of the model, and its adapters. */
export class ServedModel {
  readonly names: readonly [string, ...string[]];
  readonly #engine: ListedEngine;
  readonly #created = Math.floor(Date.now() / 1000);

  /** @throws CapstanError `invalid_argument` if an adapter has a name of the model: no request could choose it. */
  constructor(names: readonly [string, ...string[]], engine: ListedEngine) {
    const taken = engine.adapters.find(({ name }) => names.includes(name));
    if (taken !== undefined)
      throw CapstanError.argument('loraModules', 'names that the model does not have', taken.name);
    this.names = names;
    this.#engine = engine;
  }

  get task(): ModelTask {
    return this.#engine.info.task;
  }

  /** Whether the model or an adapter has the name. */
  has(name: string): boolean {
    return this.names.includes(name) || this.#adapter(name) !== undefined;
  }

  /** Returns the adapter that the `model` of a request names; undefined for the model itself. */
  adapterOf(requested: string | undefined): string | undefined {
    return requested === undefined || this.names.includes(requested) ? undefined : this.#adapter(requested)?.name;
  }

  /** Unloads an adapter, also of a model that is not in memory. */
  unloadAdapter(name: string): void {
    this.#engine.unloadAdapter(name);
  }

  /**
   * Returns the `model` of a response: the requested name, by default the first. Throws an ApiError for an unknown
   * name.
   */
  responseName(requested: string | undefined): string {
    const name = requested ?? this.names[0];
    if (!this.has(name)) throw modelNotFound(this.all(), name);
    return name;
  }

  /** Returns the names of the model and of its adapters. */
  all(): string[] {
    return [...this.names, ...this.#engine.adapters.map(({ name }) => name)];
  }

  /** Returns the items of the list of models. */
  describeAll(): ModelItem[] {
    return this.all().map((name) => this.describe(name));
  }

  describe(name: string): ModelItem {
    const { status } = this.#engine;
    const { maxModelLen, task } = this.#engine.info;
    const generates = task === 'generate';
    const adapter = this.names.includes(name) ? undefined : this.#adapter(name);
    return {
      id: name,
      object: 'model',
      created: this.#created,
      owned_by: 'capstan',
      // The name of the folder only: the server does not show its paths.
      root: adapter === undefined ? this.names[0] : basename(adapter.path),
      parent: adapter === undefined ? null : this.names[0],
      max_model_len: maxModelLen,
      ...(status === undefined ? {} : { status }),
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
      meta: modelMeta(this.#engine.info),
    };
  }

  #adapter(name: string): Pick<AdapterInfo, 'name' | 'path'> | undefined {
    return this.#engine.adapters.find((adapter) => adapter.name === name);
  }
}

export function modelNotFound(served: readonly string[], name: string): ApiError {
  const listed = served.slice(0, MAX_LISTED_NAMES).map(show).join(', ');
  const numMore = served.length - MAX_LISTED_NAMES;
  const expected = served.length > 1 ? 'one of ' : '';
  const more = numMore > 0 ? ` and ${numMore} more of GET ${MODELS_PATH}` : '';
  return new ApiError('model_not_found', `model: expected ${expected}${listed}${more}, got ${show(name)}`, {
    param: 'model',
  });
}

/** What clients want to know of a model besides the fields of OpenAI and vLLM. */
function modelMeta({ task, samplingDefaults, embeddingSize, promptNames }: ListedEngine['info']): object {
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

/** What the routes need of all models of the server. */
interface ModelsContext {
  models: { list(): { data: readonly ListedModel[] }; describe(name: string): ListedModel };
}

/** GET /v1/models */
export function listModels({ models }: ModelsContext, { path, headers, query }: HttpRequest, reply: HttpReply): void {
  const list = models.list();
  sendJson(reply, isAnthropicRequest(path, headers) ? anthropicModelPage(list.data, query) : list);
}

/** GET /v1/models/{model}. Names may contain slashes, encoded or not. */
export function getModel({ models }: ModelsContext, { path, headers }: HttpRequest, reply: HttpReply): void {
  const model = models.describe(decode(path.slice(MODELS_PATH.length + 1)));
  sendJson(reply, isAnthropicRequest(path, headers) ? anthropicModel(model) : model);
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
