import type { NativeEngine, NativePooledRequest } from './addon-types';
import type { CallTable } from './call-table';
import { CapstanError, closedError } from './errors';

/** The result of one input. */
export interface PooledInput {
  values: Float32Array;
  promptTokens: number;
  cachedTokens: number;
}

interface Job {
  request: NativePooledRequest;
  resolve(this: void, result: PooledInput): void;
  reject(this: void, error: CapstanError): void;
}

/** The inputs of one call that wait, and those that run. */
interface PoolCall {
  waiting: Job[];
  numTaken: number;
  running: Set<number>;
  hasEnded: boolean;
}

interface PoolQueueOptions {
  native: Pick<NativeEngine, 'pool' | 'abort'>;
  calls: CallTable;
  /** Most inputs in the addon: those of a step, and those of the next one. */
  maxOpen: number;
}

/** Feeds the inputs of all calls to the addon, an input of each call in turn. */
export class PoolQueue {
  readonly #options: PoolQueueOptions;
  /** Calls with waiting inputs. The first is next. */
  readonly #ring: PoolCall[] = [];
  #numOpen = 0;
  #numWaiting = 0;
  #numWaitingTokens = 0;
  #isClosed = false;

  constructor(options: PoolQueueOptions) {
    this.#options = options;
  }

  /** Inputs that the addon does not have yet. */
  get numWaiting(): number {
    return this.#numWaiting;
  }

  get numWaitingTokens(): number {
    return this.#numWaitingTokens;
  }

  /** Returns a function that adds inputs of one call, and one that ends the call. */
  open(): { add(request: NativePooledRequest): Promise<PooledInput>; end(): void } {
    const call: PoolCall = { waiting: [], numTaken: 0, running: new Set(), hasEnded: false };
    return {
      add: (request) =>
        new Promise((resolve, reject) => {
          if (this.#isClosed) return reject(closedError());
          if (call.hasEnded) return reject(new CapstanError('aborted', 'The call has ended'));
          if (!hasWaiting(call)) this.#ring.push(call);
          call.waiting.push({ request, resolve, reject });
          this.#numWaiting++;
          this.#numWaitingTokens += request.promptTokenIds.length;
          this.#submit();
        }),
      end: () => this.#drop(call),
    };
  }

  /** Fails the inputs that wait. The engine fails those that run. */
  close(): void {
    this.#isClosed = true;
    for (const call of this.#ring.splice(0))
      for (const { reject } of call.waiting.slice(call.numTaken)) reject(closedError());
    this.#numWaiting = 0;
    this.#numWaitingTokens = 0;
  }

  /** Inputs that run are aborted, those that wait are forgotten. Does nothing for a call that is complete. */
  #drop(call: PoolCall): void {
    call.hasEnded = true;
    const at = this.#ring.indexOf(call);
    if (at >= 0) this.#ring.splice(at, 1);
    for (; hasWaiting(call); call.numTaken++) this.#countTaken(call.waiting[call.numTaken]);
    if (this.#isClosed) return;
    for (const id of call.running) this.#options.native.abort(id);
  }

  #countTaken({ request }: Job): void {
    this.#numWaiting--;
    this.#numWaitingTokens -= request.promptTokenIds.length;
  }

  #submit(): void {
    while (this.#numOpen < this.#options.maxOpen) {
      const call = this.#ring.shift();
      if (call === undefined) return;
      const job = call.waiting[call.numTaken++];
      this.#countTaken(job);
      if (hasWaiting(call)) {
        this.#ring.push(call);
      } else {
        call.waiting = [];
        call.numTaken = 0;
      }
      this.#start(call, job);
    }
  }

  #start(call: PoolCall, { request, resolve, reject }: Job): void {
    try {
      const id = this.#options.native.pool(request);
      const end = (): void => {
        this.#options.calls.delete(id);
        call.running.delete(id);
        this.#numOpen--;
        if (!this.#isClosed) this.#submit();
      };
      this.#numOpen++;
      call.running.add(id);
      this.#options.calls.set(id, {
        accept: (event) => {
          if (event.finish === null) return;
          end();
          const { reason, errorCode, errorMessage, promptTokens, cachedTokens } = event.finish;
          if (event.pooled !== null) resolve({ values: event.pooled, promptTokens, cachedTokens });
          else if (reason === 'abort') reject(new CapstanError('aborted', 'The call was aborted'));
          else reject(CapstanError.from({ code: errorCode, message: errorMessage ?? 'The engine failed' }));
        },
        fail: (error) => {
          end();
          reject(error);
        },
      });
    } catch (error) {
      reject(CapstanError.from(error));
    }
  }
}

function hasWaiting({ waiting, numTaken }: PoolCall): boolean {
  return numTaken < waiting.length;
}
