/**
 * An addon that replaces the engine. It generates TEXT_SOURCE_TOKENS one-token events for every request, one per
 * running request and step, as the engine does.
 */
import type {
  NativeAddon,
  NativeEngine,
  NativeEvent,
  NativeEventSink,
  NativeFinish,
  NativeLoad,
  NativeRequest,
  NativeStats,
} from '../ts/addon-types';
import { sendEvents } from '../test/fakes/fake-addon';

const numTokens = Number(process.env.TEXT_SOURCE_TOKENS ?? 100);

class TextSource implements NativeEngine {
  readonly info: NativeEngine['info'];
  readonly #onEvents: (events: NativeEvent[]) => void;
  readonly #running = new Map<number, { numGenerated: number; promptTokens: number }>();
  #numSubmitted = 0;
  #isScheduled = false;

  constructor({ options, spec }: NativeLoad, onEvents: NativeEventSink) {
    this.#onEvents = (events) => sendEvents(onEvents, events);
    this.info = {
      backend: 'text source',
      isa: 'none',
      threads: 1,
      tensorParallelSize: 1,
      weightDtype: options.weightDtype,
      quantization: options.quantization,
      computeDtype: 'f32',
      kvCacheDtype: 'f32',
      blockSize: 16,
      numBlocks: 64,
      numStateSlots: 0,
      kvCacheBytes: 1,
      weightBytes: 1,
      maxModelLen: spec.maxPositionEmbeddings,
      notes: [],
    };
  }

  submit({ promptTokenIds }: NativeRequest): number {
    const id = ++this.#numSubmitted;
    this.#running.set(id, { numGenerated: 0, promptTokens: promptTokenIds.length });
    this.#schedule();
    return id;
  }

  pool(): never {
    throw new Error('the text source generates text only');
  }

  loadAdapter(): Promise<number> {
    return Promise.reject(new Error('the text source has no adapters'));
  }

  unloadAdapter(): void {}

  #schedule(): void {
    if (this.#isScheduled || this.#running.size === 0) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      const events: NativeEvent[] = [];
      for (const [id, state] of this.#running) {
        const isLast = ++state.numGenerated >= numTokens;
        events.push({
          id,
          index: 0,
          textDelta: 'word ',
          tokenIds: [97],
          logprobs: null,
          promptLogprobs: null,
          pooled: null,
          finish: isLast ? finish(state) : null,
        } as NativeEvent);
        if (isLast) this.#running.delete(id);
      }
      this.#onEvents(events);
      this.#schedule();
    });
  }

  compileGrammar(): Promise<never> {
    return Promise.reject(new Error('the text source has no grammars'));
  }

  abort(id: number): void {
    this.#running.delete(id);
  }

  /** Does nothing: the events of a stopped choice continue and are ignored. */
  stop(): void {}

  stats(): NativeStats {
    return {
      numWaiting: 0,
      numRunning: this.#running.size,
      queuedPromptTokens: 0,
      numBlocks: 64,
      numFreeBlocks: 64,
      numCachedBlocks: 0,
      numEvictions: 0,
      numPreemptions: 0,
      numSteps: 0,
      msSinceLastStep: 0,
      promptTokens: 0,
      cachedTokens: 0,
      completionTokens: 0,
      numFinished: { stop: 0, length: 0, abort: 0, error: 0 },
      lastStep: { numTokens: 0, numSeqs: 0, scheduleUs: 0, forwardUs: 0, settleUs: 0 },
      allSteps: { numTokens: 0, numSeqs: 0, scheduleUs: 0, forwardUs: 0, settleUs: 0 },
      snapshotBytes: 0,
      numSnapshotHits: 0,
      failure: null,
    } as NativeStats;
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

function finish({ numGenerated, promptTokens }: { numGenerated: number; promptTokens: number }): NativeFinish {
  return {
    reason: 'stop',
    stopReason: null,
    errorCode: null,
    errorMessage: null,
    promptTokens,
    completionTokens: numGenerated,
    cachedTokens: 0,
    queueMs: 0,
    prefillMs: 0,
    decodeMs: 0,
    numPreemptions: 0,
  } as NativeFinish;
}

export const version = '0.0.0-text-source';
export const isas = ['portable'];
export const load = ((record: NativeLoad, _onProgress: unknown, onEvents: NativeEventSink) =>
  Promise.resolve(new TextSource(record, onEvents))) as unknown as NativeAddon['load'];
