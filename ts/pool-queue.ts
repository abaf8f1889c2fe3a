import type { NativeEngine, NativePooledRequest } from './addon-types';
import type { CallTable } from './call-table';
import { DEFAULT_PRIORITY } from './call-context';
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

/** Inputs that the addon does not have yet. */
export interface WaitingInputs {
  numInputs: number;
  numTokens: number;
  /** Those of background work. */
  numBackgroundInputs: number;
  numBackgroundTokens: number;
}

/** The inputs of one call that wait, and those that run. */
interface PoolCall {
  priority: number;
  waiting: Job[];
  numTaken: number;
  running: Set<number>;
  hasEnded: boolean;
  onStart(this: void, numTokens: number): void;
}

interface PoolQueueOptions {
  native: Pick<NativeEngine, 'pool' | 'abort'>;
  calls: CallTable;
  /** Most inputs in the addon that are as urgent as the next: those of a step, and those of the next one. */
  maxOpen: number;
}

/** Feeds the inputs of all calls to the addon, an input of each of the most urgent calls in turn. */
export class PoolQueue {
  readonly #options: PoolQueueOptions;
  /** Calls with waiting inputs, the most urgent first. The first is next. */
  readonly #ring: PoolCall[] = [];
  /** Inputs in the addon by priority. */
  readonly #numOpen = new Map<number, number>();
  readonly #waiting: WaitingInputs = { numInputs: 0, numTokens: 0, numBackgroundInputs: 0, numBackgroundTokens: 0 };
  #isClosed = false;
  #isScheduled = false;

  constructor(options: PoolQueueOptions) {
    this.#options = options;
  }

  get waiting(): Readonly<WaitingInputs> {
    return this.#waiting;
  }

  /**
   * Returns a function that adds inputs of one call, and one that ends the call.
   * @param onStart Receives the tokens of each input that the addon takes.
   */
  open(
    priority: number,
    onStart: (numTokens: number) => void,
  ): { add(request: NativePooledRequest): Promise<PooledInput>; end(): void } {
    const call: PoolCall = { priority, waiting: [], numTaken: 0, running: new Set(), hasEnded: false, onStart };
    return {
      add: (request) =>
        new Promise((resolve, reject) => {
          if (this.#isClosed) return reject(closedError());
          if (call.hasEnded) return reject(new CapstanError('aborted', 'The call has ended'));
          if (!hasWaiting(call)) this.#enterRing(call);
          call.waiting.push({ request, resolve, reject });
          this.#countWaiting(request, 1);
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
    Object.assign(this.#waiting, { numInputs: 0, numTokens: 0, numBackgroundInputs: 0, numBackgroundTokens: 0 });
  }

  #enterRing(call: PoolCall): void {
    const at = this.#ring.findIndex(({ priority }) => priority > call.priority);
    this.#ring.splice(at < 0 ? this.#ring.length : at, 0, call);
  }

  /** Inputs that run are aborted, those that wait are forgotten. Does nothing for a call that is complete. */
  #drop(call: PoolCall): void {
    call.hasEnded = true;
    const at = this.#ring.indexOf(call);
    if (at >= 0) this.#ring.splice(at, 1);
    for (; hasWaiting(call); call.numTaken++) this.#countWaiting(call.waiting[call.numTaken].request, -1);
    if (this.#isClosed) return;
    for (const id of call.running) this.#options.native.abort(id);
  }

  #countWaiting({ promptTokenIds, priority }: NativePooledRequest, sign: 1 | -1): void {
    const numTokens = sign * promptTokenIds.length;
    this.#waiting.numInputs += sign;
    this.#waiting.numTokens += numTokens;
    if (priority <= DEFAULT_PRIORITY) return;
    this.#waiting.numBackgroundInputs += sign;
    this.#waiting.numBackgroundTokens += numTokens;
  }

  /** Inputs that may start in the same turn of the event loop reach the addon together, so that one step takes them. */
  #submit(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    queueMicrotask(() => {
      this.#isScheduled = false;
      this.#start(this.#takeJobs());
    });
  }

  /** Takes the inputs that may start, and counts them as open. */
  #takeJobs(): { call: PoolCall; job: Job }[] {
    const taken: { call: PoolCall; job: Job }[] = [];
    for (;;) {
      const call = this.#ring[0];
      if (call === undefined || this.#numOpenUpTo(call.priority) >= this.#options.maxOpen) return taken;
      this.#ring.shift();
      const job = call.waiting[call.numTaken++];
      this.#countWaiting(job.request, -1);
      if (hasWaiting(call)) {
        this.#enterRing(call);
      } else {
        call.waiting = [];
        call.numTaken = 0;
      }
      try {
        call.onStart(job.request.promptTokenIds.length);
        this.#countOpen(call.priority, 1);
        taken.push({ call, job });
      } catch (error) {
        job.reject(CapstanError.from(error));
      }
    }
  }

  /** Returns the inputs in the addon that are at least as urgent. Others give way to them. */
  #numOpenUpTo(priority: number): number {
    let count = 0;
    for (const [other, numOpen] of this.#numOpen) if (other <= priority) count += numOpen;
    return count;
  }

  #countOpen(priority: number, sign: 1 | -1): void {
    const count = (this.#numOpen.get(priority) ?? 0) + sign;
    if (count === 0) this.#numOpen.delete(priority);
    else this.#numOpen.set(priority, count);
  }

  #start(jobs: readonly { call: PoolCall; job: Job }[]): void {
    if (jobs.length === 0) return;
    const ids = this.#pool(jobs.map(({ job }) => job.request));
    for (const [i, { call, job }] of jobs.entries()) {
      const id = ids[i];
      if (typeof id === 'number') {
        this.#follow(id, call, job);
      } else {
        this.#countOpen(call.priority, -1);
        job.reject(CapstanError.from(id));
      }
    }
    // Refused inputs free their places.
    if (!this.#isClosed && ids.some((id) => typeof id !== 'number')) this.#submit();
  }

  /** If the call throws, returns its error for each request. */
  #pool(requests: readonly NativePooledRequest[]): (number | Error)[] {
    try {
      return this.#options.native.pool(requests);
    } catch (error) {
      return requests.map(() => error as Error);
    }
  }

  #follow(id: number, call: PoolCall, { resolve, reject }: Job): void {
    const end = (): void => {
      this.#options.calls.delete(id);
      call.running.delete(id);
      this.#countOpen(call.priority, -1);
      if (!this.#isClosed) this.#submit();
    };
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
  }
}

function hasWaiting({ waiting, numTaken }: PoolCall): boolean {
  return numTaken < waiting.length;
}
