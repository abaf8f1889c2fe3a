/**
 * An addon without an engine: completions are scripted, and tokens are the longest matches in the vocabulary.
 * CAPSTAN_ADDON makes the complete server use it, in this process and in others.
 */
import { existsSync } from 'node:fs';
import type {
  NativeAdapterSource,
  NativeAddon,
  NativeEngine,
  NativeEngineInfo,
  NativeEvent,
  NativeEventDetails,
  NativeEventSink,
  NativeFinish,
  NativeGrammar,
  NativeGrammarSource,
  NativeLoad,
  NativeParsedGrammar,
  NativeRequest,
  NativeStats,
  NativeTokenLogprob,
  NativeVocab,
} from '../../ts/addon-types';

export interface FakeAnswer {
  text: string;
  /** Finish reason after the whole text. Default: 'stop'. */
  reason?: 'stop' | 'error';
  errorCode?: string;
  stopReason?: string | number;
  /** Time between two steps. Default: 0. */
  stepMs?: number;
  /** Ends the text early. Asked at each step. */
  isOver?: () => boolean;
  tokensPerStep?: number;
}

/** State that tests set and inspect. */
export const fake = {
  answer: defaultAnswer as (prompt: string, request: NativeRequest, index: number) => FakeAnswer,
  /** With the tokenizers that followed. */
  loads: [] as NativeLoad[],
  requests: [] as NativeRequest[],
  /** Sources of the compiled grammars, in order. {@link FakeGrammar.source} is the one of a request. */
  grammars: [] as NativeGrammarSource[],
  /** Loaded adapters: the one with id 1 comes first. */
  adapters: [] as NativeAdapterSource[],
  unloaded: [] as number[],
  aborted: [] as number[],
  stopped: [] as [id: number, index: number][],
  failure: null as string | null,
  loadMs: 0,
  /** Changes of external memory, and 'trim'. */
  memory: [] as (number | 'trim')[],
  reset(): void {
    Object.assign(fake, {
      answer: defaultAnswer,
      loads: [],
      requests: [],
      grammars: [],
      adapters: [],
      unloaded: [],
      aborted: [],
      stopped: [],
      failure: null,
      loadMs: 0,
      memory: [],
    });
  },
};

/** Chooses a completion by the words of the prompt, for servers in another process. */
function defaultAnswer(prompt: string): FakeAnswer {
  const last = prompt.slice(prompt.lastIndexOf('<|im_start|>user'));
  if (last.includes('<tool_response>')) return { text: 'It is 21 degrees in Bern.' };
  if (last.includes('weather'))
    return { text: 'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>' };
  const [, file] = /until (\S+) exists/.exec(last) ?? [];
  if (file !== undefined) return { text: 'and on '.repeat(10_000), stepMs: 20, isOver: () => existsSync(file) };
  if (last.includes('forever')) return { text: 'and on '.repeat(10_000), stepMs: 20 };
  if (last.includes('boom')) return { text: 'so far so', reason: 'error', errorCode: 'numeric_error' };
  return { text: 'Hello from the fake engine. Größe 😀!' };
}

/** Passes events as the addon does. */
export function sendEvents(sink: NativeEventSink, events: readonly NativeEvent[]): void {
  const words: number[] = [];
  const details: NativeEventDetails[] = [];
  let text = '';
  for (const { id, index, textDelta, tokenIds, logprobs, promptLogprobs, pooled, finish } of events) {
    const hasDetails = logprobs !== null || promptLogprobs !== null || pooled !== null || finish !== null;
    words.push(id | 0, Math.floor(id / 2 ** 32), index, textDelta.length, tokenIds.length, Number(hasDetails));
    words.push(...tokenIds);
    text += textDelta;
    if (hasDetails) details.push({ logprobs, promptLogprobs, pooled, finish });
  }
  sink(Int32Array.from(words), text, details);
}

function makeError(code: string, message: string): Error {
  return Object.assign(new Error(message), { code });
}

class FakeEngine implements NativeEngine {
  readonly info: NativeEngineInfo;
  readonly #load: NativeLoad;
  readonly #onEvents: (events: NativeEvent[]) => void;
  readonly #running = new Map<number, { priority: number; stop: () => void; stopChoice: (index: number) => void }>();
  #numSubmitted = 0;
  #isClosed = false;
  #tokens = { prompt: 0, completion: 0 };

  constructor(load: NativeLoad, onEvents: NativeEventSink) {
    this.#load = load;
    this.#onEvents = (events) => sendEvents(onEvents, events);
    const { options, spec } = load;
    this.info = {
      backend: 'fake',
      isa: 'none',
      threads: options.threads || 1,
      tensorParallelSize: options.tensorParallelSize,
      weightDtype: options.weightDtype,
      quantization: options.quantization,
      computeDtype: 'f32',
      kvCacheDtype: 'f32',
      blockSize: 16,
      numBlocks: 64,
      numStateSlots: 0,
      kvCacheBytes: 1 << 20,
      weightBytes: 1000,
      maxModelLen: options.maxModelLen || spec.maxPositionEmbeddings,
      notes: [],
    };
  }

  submit(request: NativeRequest): number {
    if (this.#isClosed) throw makeError('engine_closed', 'the engine is closed');
    const { maxNumSeqs, maxQueuedRequests } = this.#load.options;
    if (this.#running.size >= maxNumSeqs + maxQueuedRequests) throw makeError('queue_full', 'the queue is full');
    fake.requests.push(request);
    const id = ++this.#numSubmitted;
    this.#tokens.prompt += request.promptTokenIds.length;
    this.#run(id, request);
    return id;
  }

  /** The fake has no model that pools. */
  pool(): never {
    throw makeError('invalid_argument', 'request: expected one that generates text, got the other kind');
  }

  /** Checks only for invalid patterns and for GBNF texts without a root. */
  async compileGrammar(given: NativeGrammarSource): Promise<FakeGrammar> {
    const source = given.kind === 'parsed' ? (given.handle as unknown as PlainSource) : given;
    fake.grammars.push(source);
    await Promise.resolve();
    if (source.kind === 'gbnf' && !/^\s*root\s*::=/m.test(source.text))
      throw makeError('invalid_argument', 'GBNF: no rule root');
    for (const pattern of patternsIn(source)) checkPattern(pattern);
    return {
      source,
      sizeBytes: 1000,
      isInUse: () => false,
      free: () => undefined,
      matcher: () => {
        throw new Error('the fake engine matches nothing');
      },
    };
  }

  #run(id: number, request: NativeRequest): void {
    const { vocab } = this.#load.tokenizer!;
    const prompt = Buffer.concat([...request.promptTokenIds].map((token) => tokenBytes(vocab, token))).toString();
    let numOpen = request.numChoices;
    const timers = new Set<NodeJS.Timeout>();
    const emitEnd = (index: number, finish: Partial<NativeFinish>, completionTokens: number) => {
      this.#onEvents([
        {
          id,
          index,
          textDelta: '',
          tokenIds: [],
          logprobs: null,
          promptLogprobs: null,
          pooled: null,
          finish: makeFinish(request, completionTokens, finish),
        },
      ]);
    };
    const counts = new Array<number>(request.numChoices).fill(0);
    const stop = (finish: Partial<NativeFinish>) => {
      timers.forEach(clearTimeout);
      this.#running.delete(id);
      for (let index = 0; index < request.numChoices; index++)
        if (counts[index] >= 0) emitEnd(index, finish, counts[index]);
    };
    const stopChoice = (index: number) => {
      if (!(counts[index] >= 0)) return;
      const completionTokens = counts[index];
      counts[index] = -1;
      if (--numOpen === 0) this.#running.delete(id);
      emitEnd(index, { reason: 'stop' }, completionTokens);
    };
    this.#running.set(id, {
      priority: request.priority,
      stopChoice,
      stop: () =>
        stop(
          this.#isClosed
            ? { reason: 'error', errorCode: 'engine_closed', errorMessage: 'the engine was closed' }
            : { reason: 'abort' },
        ),
    });
    for (let index = 0; index < request.numChoices; index++) {
      const answer = fake.answer(prompt, request, index);
      const tokens = tokenize(vocab, answer.text);
      const isCut = tokens.length > request.sampling.maxTokens;
      tokens.length = Math.min(tokens.length, request.sampling.maxTokens);
      const perStep = answer.tokensPerStep ?? 1;
      const decoder = new TextDecoder();
      const step = (from: number) => {
        if (this.#isClosed || counts[index] < 0 || !this.#running.has(id)) return;
        const tokenIds = tokens.slice(from, from + perStep);
        const isOver = answer.isOver?.() === true;
        const isLast = isOver || from + perStep >= tokens.length;
        counts[index] += tokenIds.length;
        this.#tokens.completion += tokenIds.length;
        const textDelta =
          tokenIds
            .filter((token) => !(request.sampling.skipSpecialTokens && vocab.special[token] === 1))
            .map((token) => decoder.decode(tokenBytes(vocab, token), { stream: true }))
            .join('') + (isLast ? decoder.decode() : '');
        const finish = isLast
          ? makeFinish(
              request,
              counts[index],
              isCut && !isOver
                ? { reason: 'length' }
                : {
                    reason: answer.reason ?? 'stop',
                    stopReason: answer.stopReason ?? null,
                    errorCode: answer.errorCode ?? null,
                    errorMessage: answer.errorCode ? 'the fake failed' : null,
                  },
            )
          : null;
        if (isLast) {
          counts[index] = -1;
          if (--numOpen === 0) this.#running.delete(id);
        }
        this.#onEvents([
          {
            id,
            index,
            textDelta,
            tokenIds,
            pooled: null,
            finish,
            logprobs:
              request.sampling.logprobs >= 0
                ? tokenIds.map((token) => makeLogprob(token, request.sampling.logprobs))
                : null,
            promptLogprobs:
              from === 0 && index === 0 && request.sampling.promptLogprobs >= 0
                ? [
                    null,
                    ...[...request.promptTokenIds]
                      .slice(1)
                      .map((token) => makeLogprob(token, request.sampling.promptLogprobs)),
                  ]
                : null,
          },
        ]);
        if (!isLast) schedule(from + perStep);
      };
      const schedule = (from: number) => {
        const timer = setTimeout(() => {
          timers.delete(timer);
          step(from);
        }, answer.stepMs ?? 0);
        timers.add(timer);
      };
      schedule(0);
    }
  }

  abort(id: number): void {
    fake.aborted.push(id);
    const running = this.#running.get(id);
    if (running !== undefined) setImmediate(() => running.stop());
  }

  stop(id: number, index: number): void {
    fake.stopped.push([id, index]);
    setImmediate(() => this.#running.get(id)?.stopChoice(index));
  }

  async loadAdapter(source: NativeAdapterSource): Promise<number> {
    fake.adapters.push(source);
    return fake.adapters.length;
  }

  unloadAdapter(id: number): void {
    fake.unloaded.push(id);
  }

  stats(): NativeStats {
    return {
      numWaiting: 0,
      numRunning: this.#running.size,
      numBackground: [...this.#running.values()].filter(({ priority }) => priority > 0).length,
      queuedPromptTokens: 0,
      queuedBackgroundTokens: 0,
      numBlocks: 64,
      numFreeBlocks: 64,
      numCachedBlocks: 0,
      snapshotBytes: 0,
      numSnapshotHits: 0,
      grammarCacheBytes: 0,
      numEvictions: 0,
      numPreemptions: 0,
      numSteps: 0,
      msSinceLastStep: 0,
      promptTokens: this.#tokens.prompt,
      cachedTokens: 0,
      completionTokens: this.#tokens.completion,
      numFinished: { stop: 0, length: 0, abort: 0, error: 0 },
      numDrafts: 0,
      numDraftTokens: 0,
      numAcceptedTokens: [],
      numDiskBlocks: 0,
      diskBytes: 0,
      numDiskHits: 0,
      numDiskDeclined: 0,
      diskCachedTokens: 0,
      diskBytesRead: 0,
      diskBytesWritten: 0,
      numDiskEvictions: 0,
      numDiskSkipped: 0,
      numDiskDamaged: 0,
      diskProblem: null,
      lastStep: { numTokens: 0, numSeqs: 0, scheduleUs: 0, forwardUs: 0, settleUs: 0 },
      allSteps: { numTokens: 0, numSeqs: 0, scheduleUs: 0, forwardUs: 0, settleUs: 0 },
      profile: null,
      failure: fake.failure,
    };
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    for (const { stop } of [...this.#running.values()]) stop();
  }
}

export interface FakeGrammar extends NativeGrammar {
  source: NativeGrammarSource;
}

function patternsIn(source: unknown): string[] {
  if (typeof source !== 'object' || source === null) return [];
  const { kind, pattern } = source as { kind?: unknown; pattern?: unknown };
  return kind === 'regex' && typeof pattern === 'string' ? [pattern] : Object.values(source).flatMap(patternsIn);
}

function checkPattern(pattern: string): void {
  try {
    new RegExp(pattern, 'u');
  } catch (error) {
    throw makeError('invalid_argument', `regex: ${(error as Error).message}`);
  }
}

function makeFinish(request: NativeRequest, completionTokens: number, finish: Partial<NativeFinish>): NativeFinish {
  return {
    reason: 'stop',
    stopReason: null,
    errorCode: null,
    errorMessage: null,
    promptTokens: request.promptTokenIds.length,
    completionTokens,
    cachedTokens: 0,
    queueMs: 1,
    prefillMs: 2,
    decodeMs: 3,
    numPreemptions: 0,
    ...finish,
  };
}

function makeLogprob(tokenId: number, numTop: number): NativeTokenLogprob {
  return {
    tokenId,
    logprob: -0.5,
    rank: 1,
    top: Array.from({ length: numTop }, (_, i) => ({ tokenId: i === 0 ? tokenId : i, logprob: -0.5 - i })),
  };
}

function tokenBytes({ bytes, offsets }: NativeVocab, id: number): Uint8Array {
  return bytes.subarray(offsets[id], offsets[id + 1]);
}

/** Takes the longest match at every position. The vocabulary contains every byte. */
function tokenize(vocab: NativeVocab, text: string): number[] {
  const idOf = new Map<string, number>();
  let longest = 1;
  for (let id = 0; id + 1 < vocab.offsets.length; id++) {
    const piece = Buffer.from(tokenBytes(vocab, id)).toString('latin1');
    if (!idOf.has(piece)) idOf.set(piece, id);
    longest = Math.max(longest, piece.length);
  }
  const bytes = Buffer.from(text).toString('latin1');
  const ids: number[] = [];
  for (let at = 0; at < bytes.length;) {
    let length = Math.min(longest, bytes.length - at);
    while (length > 1 && !idOf.has(bytes.slice(at, at + length))) length--;
    ids.push(idOf.get(bytes.slice(at, at + length)) ?? 0);
    at += length;
  }
  return ids;
}

type PlainSource = Exclude<NativeGrammarSource, { kind: 'parsed' }>;

export const version = '0.0.0-fake';
export const isas = ['portable'];
/** The handle of the fake addon is the source itself, which can be sent to any thread. */
export const parseGrammar: NativeAddon['parseGrammar'] = (source) => source as unknown as NativeParsedGrammar;
export const adjustExternalMemory: NativeAddon['adjustExternalMemory'] = (change) => {
  fake.memory.push(change);
};
export const trimMemory: NativeAddon['trimMemory'] = () => {
  fake.memory.push('trim');
  return Promise.resolve();
};

/** Enough for every model of the tests. */
export const availableMemoryBytes: NativeAddon['availableMemoryBytes'] = () => 2 ** 40;
/** Without exclusion: tests of the lock use the real addon. */
export const tryLockFile: NativeAddon['tryLockFile'] = () => true;

export const load: NativeAddon['load'] = (record, onProgress, onEvents, onStart) =>
  new Promise((resolve, reject) => {
    fake.loads.push(record);
    let hasWeights = false;
    const finish = () => {
      if (hasWeights && record.tokenizer !== null) resolve(new FakeEngine(record, onEvents));
    };
    const timer = setTimeout(() => {
      onProgress(1000, 1000);
      hasWeights = true;
      finish();
    }, fake.loadMs);
    onStart({
      cancel: () => {
        clearTimeout(timer);
        reject(makeError('aborted', 'loading was aborted'));
      },
      setTokenizer: (tokenizer) => {
        record.tokenizer = tokenizer;
        finish();
      },
    });
  });
