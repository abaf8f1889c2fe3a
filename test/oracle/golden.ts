import { existsSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';

/** Results of transformers for one model, written by `make_models.py`. */
export interface Golden {
  case: string;
  family: string;
  dtype: 'f32' | 'f16' | 'bf16' | 'quantized';
  /** Context length to load the engine with; absent for the default. */
  maxModelLen?: number;
  features: string[];
  /** In random and in sensitive cases: the error of the number type alone, measured by rounding in transformers. */
  roundingCost?: Tolerance;
  /** In random cases: the error of float32 alone, measured in transformers in float64. */
  float32Cost?: Tolerance;
  /** Log-probability of each token of the named prompt, given the tokens before it; null for the first. */
  promptLogprobs: { prompt: string; logprobs: (number | null)[] };
  prompts: GoldenPrompt[];
}

export interface GoldenPrompt {
  name: string;
  promptTokenIds: number[];
  greedyTokenIds: number[];
  /** Per step: [token id, log-probability] of the five most likely. */
  topLogprobs: [number, number][][];
  /** Per step: log-probability of the chosen token minus that of the second most likely. */
  margins: number[];
}

export interface GoldenCase {
  directory: string;
  golden: Golden;
}

/** Results of a runtime for one prompt. */
export interface Answer {
  tokenIds: number[];
  /** Per step, more alternatives than the golden has. */
  topLogprobs: [number, number][][];
}

/** Largest |log-probability difference| of the top five, and the mean over a case. */
export interface Tolerance {
  worst: number;
  mean: number;
}

/** Tolerance with activations and KV cache of the checkpoint's type. */
const NATIVE_TOLERANCE: Record<Golden['dtype'], Tolerance> = {
  f32: { worst: 1e-3, mean: 1e-3 },
  f16: { worst: 1e-2, mean: 1e-2 },
  bf16: { worst: 0.15, mean: 0.02 },
  quantized: { worst: 0.4, mean: 0.05 },
};
/** Tolerance with activations and KV cache in f32, for any type of the checkpoint. */
export const F32_TOLERANCE: Tolerance = { worst: 1e-3, mean: 1e-3 };

/** Returns the tolerance of a case. Random cases may need more: twice their rounding cost. */
export function nativeTolerance(golden: Golden): Tolerance {
  return atLeast(atLeast(NATIVE_TOLERANCE[golden.dtype], golden.roundingCost, 2), golden.float32Cost, 4);
}

/** As {@link nativeTolerance}: four times the error of float32, because transformers has it too. */
export function f32Tolerance({ float32Cost }: Golden): Tolerance {
  return atLeast(F32_TOLERANCE, float32Cost, 4);
}

function atLeast(tolerance: Tolerance, cost: Tolerance | undefined, times: number): Tolerance {
  return {
    worst: Math.max(tolerance.worst, times * (cost?.worst ?? 0)),
    mean: Math.max(tolerance.mean, times * (cost?.mean ?? 0)),
  };
}

/** Returns the cases in a directory, or the directory itself if it is a case. */
export function listCases(directory: string): GoldenCase[] {
  const isCase = (dir: string) =>
    existsSync(path.join(dir, 'config.json')) && existsSync(path.join(dir, 'golden.json'));
  const directories = isCase(directory)
    ? [directory]
    : readdirSync(directory, { withFileTypes: true })
        .filter((entry) => entry.isDirectory())
        .map((entry) => path.join(directory, entry.name))
        .filter(isCase)
        .sort();
  return directories.map((dir) => ({
    directory: dir,
    golden: JSON.parse(readFileSync(path.join(dir, 'golden.json'), 'utf8')) as Golden,
  }));
}

/** Collects the differences of one case, prompt by prompt. */
export class Comparison {
  readonly failures: string[] = [];
  worst = 0;
  numTokens = 0;
  numEqualTokens = 0;
  #sum = 0;
  #count = 0;

  constructor(
    readonly golden: Golden,
    readonly tolerance: Tolerance,
  ) {}

  get mean(): number {
    return this.#count === 0 ? 0 : this.#sum / this.#count;
  }

  /** Compares steps until the tokens differ. They may differ only where the golden is near a tie. */
  addPrompt(prompt: GoldenPrompt, answer: Answer): void {
    const numSteps = prompt.greedyTokenIds.length;
    this.numTokens += numSteps;
    if (answer.tokenIds.length !== numSteps)
      this.failures.push(`prompt ${prompt.name}: ${answer.tokenIds.length} tokens instead of ${numSteps}`);
    for (let step = 0; step < Math.min(numSteps, answer.tokenIds.length); step++) {
      this.#addStep(prompt, step, answer.topLogprobs[step]);
      if (answer.tokenIds[step] === prompt.greedyTokenIds[step]) {
        this.numEqualTokens++;
        continue;
      }
      if (prompt.margins[step] > 2 * this.tolerance.worst) {
        this.failures.push(
          `prompt ${prompt.name}, step ${step}: token ${answer.tokenIds[step]} instead of ${prompt.greedyTokenIds[step]}, margin ${prompt.margins[step]}`,
        );
      } else {
        // Later steps continue a different text, so they are not comparable.
        this.numTokens -= numSteps - step;
      }
      return;
    }
  }

  addPromptLogprobs(logprobs: (number | null)[]): void {
    const expected = this.golden.promptLogprobs.logprobs;
    if (logprobs.length !== expected.length)
      this.failures.push(`${logprobs.length} prompt log-probabilities instead of ${expected.length}`);
    for (let i = 0; i < Math.min(logprobs.length, expected.length); i++) {
      if ((logprobs[i] === null) !== (expected[i] === null))
        this.failures.push(`prompt log-probability ${i}: ${logprobs[i]} instead of ${expected[i]}`);
      else if (expected[i] !== null) this.#add(Math.abs(logprobs[i]! - expected[i]!), `prompt log-probability ${i}`);
    }
  }

  /** Checks the mean of the case. Call it last. */
  finish(): this {
    if (!(this.mean <= this.tolerance.mean))
      this.failures.push(`mean difference ${this.mean.toExponential(2)}, allowed ${this.tolerance.mean}`);
    return this;
  }

  #addStep(prompt: GoldenPrompt, step: number, top: [number, number][]): void {
    const found = new Map(top);
    const least = Math.min(...found.values());
    for (const [tokenId, expected] of prompt.topLogprobs[step]) {
      // A token that the runtime does not list is at most as likely as its last one.
      const difference = found.has(tokenId) ? Math.abs(found.get(tokenId)! - expected) : Math.max(0, expected - least);
      this.#add(difference, `prompt ${prompt.name}, step ${step}, token ${tokenId}`);
    }
  }

  #add(difference: number, where: string): void {
    // The negation also catches NaN.
    if (!(difference <= this.tolerance.worst) && this.failures.length < 5)
      this.failures.push(`${where}: off by ${difference.toPrecision(3)}, allowed ${this.tolerance.worst}`);
    this.worst = Math.max(this.worst, Number.isNaN(difference) ? Infinity : difference);
    this.#sum += difference;
    this.#count++;
  }
}
