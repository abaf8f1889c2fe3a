import {
  History,
  type HttpReply,
  isResponseId,
  type Log,
  newResponseId,
  REFERENCE,
  type ResponseStore,
  type StoredItem,
  topLevelValues,
  withTopLevelValues,
} from 'capstan/internal';
import type { KeptRequest, KeptResponse } from '../gateway/owner-storage';
import { KeptReply, objectIn } from './kept-reply';
import { ResponseRewriter, type WireResponse } from './response-rewriter';

/** Limit of the stored text that one conversation may read. It is parsed in the thread of the gateway. */
const MAX_HISTORY_BYTES = 16 * 2 ** 20;
const REFERENCE_BYTES = Buffer.from(`"${REFERENCE}"`);

interface ResponsesBody {
  input: string | readonly StoredItem[];
  previous_response_id?: string | null;
}

/** Keeps the responses of replicas, which get whole conversations with `store: false`. */
export class ResponseKeeper {
  readonly #store: ResponseStore;
  readonly #log: Log;

  constructor(store: ResponseStore, log: Log) {
    this.#store = store;
    this.#log = log;
  }

  /**
   * Returns undefined for a request that is neither kept nor continues a kept response, and for an invalid one: the
   * replica says what is wrong. Throws ApiError.
   */
  async prepare(
    { ownerId, requestId, deploymentId, reach, kind }: KeptRequest,
    body: Buffer,
    reply: HttpReply,
  ): Promise<KeptResponse | undefined> {
    const isCount = kind === 'count';
    const request = read(body, isCount);
    const value = request === undefined ? undefined : objectIn(body);
    if (request === undefined || !isResponsesBody(value)) return undefined;
    const { fields, isStored } = request;
    const history = new History(this.#store, { ownerId, reach }, MAX_HISTORY_BYTES);
    const items = toItems(value.input);
    const own = (await history.withoutReferences(items)).map((item, i) => (item === items[i] ? item : asInput(item)));
    const previousId = value.previous_response_id ?? null;
    const turns = previousId === null ? [] : await history.turnsUpTo(previousId);
    const earlier = turns.flatMap(({ input, response }) => [...input, ...response.output.map(asInput)]);
    const hasChanged = earlier.length > 0 || own.some((item, i) => item !== items[i]);
    const keeper = new OneResponse(history, {
      isStored,
      previousId,
      input: own,
      requestId,
      deploymentId,
      log: this.#log,
    });
    const kept = new KeptReply(reply, new ResponseRewriter(keeper));
    return {
      body: withTopLevelValues(body, fields, {
        ...(isCount ? {} : { store: 'false' }),
        ...(previousId === null ? {} : { previous_response_id: 'null' }),
        ...(hasChanged ? { input: JSON.stringify([...earlier, ...own]) } : {}),
      }),
      reply: kept,
      settled: () => kept.settled(),
    };
  }
}

interface OneResponseFacts {
  isStored: boolean;
  previousId: string | null;
  input: readonly StoredItem[];
  requestId: string;
  deploymentId: string;
  log: Log;
}

/** One response as its client gets it. */
class OneResponse {
  readonly #history: History;
  readonly #facts: OneResponseFacts;
  #ownId: string | undefined;

  constructor(history: History, facts: OneResponseFacts) {
    this.#history = history;
    this.#facts = facts;
  }

  shown(response: WireResponse, isStored = this.#facts.isStored): WireResponse {
    const id = this.#idOf(response.id);
    return { ...response, id, previous_response_id: this.#facts.previousId, store: isStored };
  }

  async kept(response: WireResponse): Promise<WireResponse> {
    const { isStored, previousId, input, requestId, deploymentId, log } = this.#facts;
    const hasEnded = response.status === 'completed' || response.status === 'incomplete';
    if (!isStored || !hasEnded) return this.shown(response, false);
    const shown = this.shown(response);
    const id = this.#idOf(response.id);
    const output = response.output as readonly StoredItem[];
    try {
      const stored = { ...shown, id, previous_response_id: previousId, output };
      if (await this.#history.put({ response: stored, input, deployment_id: deploymentId })) return shown;
      log.warn({ requestId }, 'a response is too large to be stored, or its id is taken');
    } catch (error) {
      log.error({ requestId, err: error }, 'cannot store a response');
    }
    return this.shown(response, false);
  }

  /** Other servers have ids of other forms. */
  #idOf(id: unknown): string {
    return typeof id === 'string' && isResponseId(id) ? id : (this.#ownId ??= newResponseId());
  }
}

/** Returns undefined if a replica can get the body unchanged, and for a body that only a replica can judge. */
function read(body: Buffer, isCount: boolean) {
  try {
    const fields = topLevelValues(body);
    const textOf = (name: string): string | undefined => {
      const range = fields.get(name);
      return range === undefined ? undefined : body.toString('utf8', range.start, range.end).trim();
    };
    const isStored = !isCount && textOf('store') !== 'false';
    const isContinued = (textOf('previous_response_id') ?? 'null') !== 'null';
    if (!isStored && !isContinued && !body.includes(REFERENCE_BYTES)) return undefined;
    return { fields, isStored };
  } catch {
    return undefined;
  }
}

function isResponsesBody(value: unknown): value is ResponsesBody {
  if (typeof value !== 'object' || value === null) return false;
  const { input, previous_response_id: previousId = null } = value as Record<string, unknown>;
  if (previousId !== null && typeof previousId !== 'string') return false;
  return typeof input === 'string' || (Array.isArray(input) && input.every(isItem));
}

function isItem(value: unknown): value is StoredItem {
  if (typeof value !== 'object' || value === null) return false;
  const { id, type } = value as Record<string, unknown>;
  return [id, type].every((text) => text === undefined || text === null || typeof text === 'string');
}

/** A text is the short form of one message of the user. */
function toItems(input: ResponsesBody['input']): readonly StoredItem[] {
  return typeof input === 'string' ? [{ type: 'message', role: 'user', content: input }] : input;
}

/** Returns an output item as input. Its id and status mean something to the server that keeps it only. */
function asInput(item: StoredItem): StoredItem {
  return Object.fromEntries(Object.entries(item).filter(([name]) => name !== 'id' && name !== 'status'));
}
