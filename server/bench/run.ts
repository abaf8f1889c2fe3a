import { arrivalTimesMs } from './arrivals';
import type { ServeBenchOptions } from './options';
import type { Outcome } from './outcome';
import { Random } from './random';
import { Target } from './target';
import { makeWorkload, type Prompt } from './workload';

export interface BenchRun {
  model: string;
  outcomes: Outcome[];
  durationMs: number;
  /** Requests that were not sent because the run was stopped. */
  numUnsent: number;
}

export interface RunHooks {
  /** Ends the run early. The results so far are kept. */
  signal: AbortSignal;
  onProgress: (numEnded: number, numFailed: number) => void;
}

/** The server is not ready or failed the first request, so there is nothing to measure. */
export class TargetError extends Error {}

/** Nearly every vocabulary has token ids up to this size. */
const SAFE_VOCABULARY = 1000;

/** Sends the requests at their arrival times and collects the outcomes. @throws TargetError */
export async function runServeBench(options: ServeBenchOptions, hooks: RunHooks): Promise<BenchRun> {
  const target = new Target(options);
  try {
    const { model, vocabSize } = await findModel(target, options);
    const random = new Random(options.seed);
    const prompts = makeWorkload(options, options.vocabSize ?? vocabSize ?? SAFE_VOCABULARY, random);
    const dueTimes = arrivalTimesMs(prompts.length, options, random);
    await sendTestRequest(target, prompts[0], model);
    await warmUp(target, prompts, model, options);
    const onAbort = () => target.stop();
    hooks.signal.addEventListener('abort', onAbort);
    const run = await measure(target, prompts, dueTimes, model, options, hooks);
    hooks.signal.removeEventListener('abort', onAbort);
    return run;
  } finally {
    target.close();
  }
}

/** Polls /v1/models until the server is ready or the timeout expires. Servers without that route need --model. */
async function findModel(
  target: Target,
  { model, readyTimeoutMs }: ServeBenchOptions,
): Promise<{ model: string; vocabSize: number | undefined }> {
  const deadline = performance.now() + readyTimeoutMs;
  for (;;) {
    try {
      const { data } = (await target.getJson('/v1/models')) as { data: { id: string; meta?: { n_vocab?: number } }[] };
      const found = model === undefined ? data[0] : data.find(({ id }) => id === model);
      return { model: model ?? found!.id, vocabSize: found?.meta?.n_vocab };
    } catch (error) {
      if (performance.now() < deadline) {
        await new Promise((resolve) => setTimeout(resolve, 250));
        continue;
      }
      if (model !== undefined) return { model, vocabSize: undefined };
      throw new TargetError(
        `${target.url} is not ready (${(error as Error).message}). If it has no /v1/models, set --model`,
      );
    }
  }
}

async function sendTestRequest(target: Target, prompt: Prompt, model: string): Promise<void> {
  const { errorKind, errorMessage } = await target.send(prompt, model, performance.now());
  if (errorKind !== undefined)
    throw new TargetError(`the first request to ${target.url} failed (${errorKind}): ${errorMessage}`);
}

async function warmUp(
  target: Target,
  prompts: readonly Prompt[],
  model: string,
  { numWarmups, maxConcurrency }: ServeBenchOptions,
): Promise<void> {
  let numSent = 0;
  const worker = async () => {
    while (numSent < numWarmups) await target.send(prompts[numSent++ % prompts.length], model, performance.now());
  };
  await Promise.all(Array.from({ length: Math.min(numWarmups, maxConcurrency, 64) }, worker));
}

function measure(
  target: Target,
  prompts: readonly Prompt[],
  dueTimes: readonly number[],
  model: string,
  { maxConcurrency }: ServeBenchOptions,
  { signal, onProgress }: RunHooks,
): Promise<BenchRun> {
  const outcomes: Outcome[] = [];
  const begin = performance.now();
  let numSent = 0;
  let numFailed = 0;
  return new Promise((resolve) => {
    let timer: NodeJS.Timeout | undefined;
    const finish = () => {
      signal.removeEventListener('abort', sendDue);
      resolve({ model, outcomes, durationMs: performance.now() - begin, numUnsent: prompts.length - numSent });
    };
    const sendDue = (): void => {
      clearTimeout(timer);
      const now = performance.now() - begin;
      while (
        !signal.aborted &&
        numSent < prompts.length &&
        numSent - outcomes.length < maxConcurrency &&
        dueTimes[numSent] <= now
      ) {
        const index = numSent++;
        void target.send(prompts[index], model, begin + dueTimes[index]).then((outcome) => {
          outcomes.push(outcome);
          if (outcome.errorKind !== undefined) numFailed++;
          onProgress(outcomes.length, numFailed);
          sendDue();
        });
      }
      if (outcomes.length === numSent && (signal.aborted || numSent === prompts.length)) finish();
      else if (numSent < prompts.length && dueTimes[numSent] > now)
        timer = setTimeout(sendDue, dueTimes[numSent] - now);
    };
    signal.addEventListener('abort', sendDue);
    sendDue();
  });
}
