import { ApiError } from '../../base/errors';
import { object } from '../../base/json/schema-types';
import { show, validate } from '../../base/json/validate';
import type { Log } from '../../base/log';
import { maySee, ownerOf, type StoreReader } from './history';
import { isCompletionId } from './ids';
import { checkMetadata, METADATA } from './metadata';
import { invalidAfter, type PageQuery } from './page';
import { MAX_TEXT_BYTES, type ResponseStore } from './store';

/** Limit of the stored text of one page of a list. A page that would exceed it ends early. */
const MAX_PAGE_BYTES = 16 * 2 ** 20;

export type Metadata = Readonly<Record<string, string>>;
type Json = Readonly<Record<string, unknown>>;

/** A chat completion and the messages of its request. */
export interface StoredCompletion {
  completion: Json & { id: string; metadata: Metadata };
  messages: readonly Json[];
  /** Not sent. Absent outside the service. */
  deployment_id?: string;
}

/** The fields of a request that its stored completion repeats. */
const ECHOED = [
  'frequency_penalty',
  'presence_penalty',
  'response_format',
  'temperature',
  'tool_choice',
  'tools',
  'top_p',
] as const;

/** The parts of a chat completion request that are stored. */
export interface CompletionRequest {
  /** Undefined: they are too large to be stored. The request does not hold them while it runs. */
  messages: readonly Json[] | undefined;
  fields: Json & { metadata: Metadata };
}

/**
 * Returns the parts of a request to store. Undefined unless `store` is true and the request has messages. Throws
 * ApiError for invalid metadata.
 * @param body The JSON value of the request's body.
 */
export async function readCompletionRequest(body: unknown): Promise<CompletionRequest | undefined> {
  const sent = body as Json;
  const { messages, seed, user } = sent;
  if (sent.store !== true || !isMessages(messages)) return undefined;
  return {
    messages: JSON.stringify(messages).length > MAX_TEXT_BYTES ? undefined : messages,
    fields: {
      ...Object.fromEntries(ECHOED.map((name) => [name, sent[name] ?? null])),
      // JSON.parse has rounded a larger one.
      seed: Number.isSafeInteger(seed) ? seed : null,
      input_user: user ?? null,
      metadata: await readMetadata(sent),
    },
  };
}

/** Returns the metadata of a body. Throws ApiError for invalid metadata. */
export async function readMetadata(body: unknown): Promise<Metadata> {
  const { metadata } = body as { metadata?: unknown };
  const { metadata: checked = {} } = await validate(METADATA_BODY, { metadata });
  checkMetadata(checked);
  return checked;
}

const METADATA_BODY = object({ metadata: METADATA });

/** The owners whose completions are being listed. */
const LISTED_OWNERS = new WeakMap<ResponseStore, Set<string>>();

/** Selects the completions of a list. */
export interface CompletionFilter {
  model: string | undefined;
  metadata: Metadata;
}

export interface CompletionPage {
  data: StoredCompletion['completion'][];
  hasMore: boolean;
}

/** The stored chat completions of one owner that a client may have. */
export class Completions {
  readonly #store: ResponseStore | undefined;
  readonly #owner: string;
  readonly #reader: StoreReader;

  constructor(store: ResponseStore | undefined, reader: StoreReader) {
    this.#store = store;
    this.#owner = ownerOf(reader);
    this.#reader = reader;
  }

  /** Throws ApiError `completion_not_found`, also for a completion that the client may not see. */
  async demand(id: string): Promise<StoredCompletion> {
    const store = this.#demandStore();
    const text = isCompletionId(id) ? await store.get(this.#owner, id) : undefined;
    const found = text === undefined ? undefined : await this.#parse(id, text);
    if (found === undefined || !maySee(this.#reader, found.deployment_id)) throw notFound(id);
    return found;
  }

  async delete(id: string): Promise<void> {
    await this.demand(id);
    if (!(await this.#demandStore().delete(this.#owner, id))) throw notFound(id);
  }

  /** Replaces the metadata. Returns the completion, or undefined if it would be too large to be stored. */
  async update(id: string, metadata: Metadata): Promise<StoredCompletion['completion'] | undefined> {
    let { completion } = await this.demand(id);
    const isStored = await this.#demandStore().update(this.#owner, id, (text) => {
      const record = JSON.parse(text) as StoredCompletion;
      completion = { ...record.completion, metadata };
      return JSON.stringify({ ...record, completion });
    });
    if (isStored === undefined) throw notFound(id);
    return isStored ? completion : undefined;
  }

  /**
   * Stores a completion. A failure is logged, because the client gets the completion anyway.
   * @param completion As it is sent.
   */
  async keep(
    completion: object & { id: string },
    { messages, fields }: CompletionRequest,
    { requestId, deploymentId, log }: { requestId: string; deploymentId?: string; log: Log },
  ): Promise<void> {
    const record = {
      completion: { ...completion, request_id: requestId, ...fields },
      messages,
      ...(deploymentId === undefined ? {} : { deployment_id: deploymentId }),
    };
    try {
      const isStored =
        messages !== undefined && (await this.#demandStore().put(this.#owner, completion.id, JSON.stringify(record)));
      if (!isStored) log.warn({ requestId }, 'a chat completion is too large to be stored');
    } catch (error) {
      log.error({ requestId, err: error }, 'cannot store a chat completion');
    }
  }

  /**
   * Returns a page of the completions that a filter names, in the order of their creation. Throws ApiError `queue_full`
   * while the owner has another list in progress, and the reason of the signal.
   */
  async list(page: PageQuery, filter: CompletionFilter, signal: AbortSignal): Promise<CompletionPage> {
    const store = this.#demandStore();
    if (page.after !== null && !isCompletionId(page.after)) throw invalidAfter(page.after);
    const owners = LISTED_OWNERS.get(store) ?? new Set();
    LISTED_OWNERS.set(store, owners);
    // A list may read all texts of its owner.
    if (owners.has(this.#owner))
      throw new ApiError('queue_full', 'Another list of chat completions is in progress: retry when it has ended');
    owners.add(this.#owner);
    try {
      return await this.#list(store, page, filter, signal);
    } finally {
      owners.delete(this.#owner);
    }
  }

  async #list(
    store: ResponseStore,
    { limit, after, isAscending }: PageQuery,
    filter: CompletionFilter,
    signal: AbortSignal,
  ): Promise<CompletionPage> {
    // The ids sort by time.
    const ids = (await store.ids(this.#owner)).filter(isCompletionId).sort();
    if (!isAscending) ids.reverse();
    const isAfterCursor = (id: string): boolean => after === null || (isAscending ? id > after : id < after);
    const data: StoredCompletion['completion'][] = [];
    let numBytes = 0;
    const longestText = longestTextOf(filter);
    for (const id of ids.filter(isAfterCursor)) {
      signal.throwIfAborted();
      const text = await store.peek(this.#owner, id);
      // Parsing costs much more than this search.
      if (text === undefined || !text.includes(longestText)) continue;
      const found = await this.#parse(id, text);
      if (found === undefined || !maySee(this.#reader, found.deployment_id) || !matches(found, filter)) continue;
      numBytes += text.length;
      const isFull = data.length === limit || (data.length > 0 && numBytes > MAX_PAGE_BYTES);
      if (isFull) return { data, hasMore: true };
      data.push(found.completion);
    }
    return { data, hasMore: false };
  }

  /** Deletes a text that is not JSON, such as half a file after a power failure. */
  async #parse(id: string, text: string): Promise<StoredCompletion | undefined> {
    try {
      return JSON.parse(text) as StoredCompletion;
    } catch {
      await this.#store?.delete(this.#owner, id);
      return undefined;
    }
  }

  #demandStore(): ResponseStore {
    if (this.#store !== undefined) return this.#store;
    throw new ApiError('completion_not_found', 'This server stores no chat completions');
  }
}

/** Returns the longest text of a filter. A stored completion that matches the filter contains it. */
function longestTextOf({ model, metadata }: CompletionFilter): string {
  const words = [...(model === undefined ? [] : [model]), ...Object.entries(metadata).flat()];
  return words.map((word) => JSON.stringify(word)).reduce((a, b) => (b.length > a.length ? b : a), '');
}

function matches({ completion }: StoredCompletion, { model, metadata }: CompletionFilter): boolean {
  const isOfModel = model === undefined || completion.model === model;
  const own = completion.metadata;
  return isOfModel && Object.entries(metadata).every(([key, value]) => Object.hasOwn(own, key) && own[key] === value);
}

function isMessages(value: unknown): value is readonly Json[] {
  return Array.isArray(value) && value.every((message) => typeof message === 'object' && message !== null);
}

function notFound(id: string): ApiError {
  return new ApiError('completion_not_found', `expected the id of a stored chat completion, got ${show(id)}`);
}
