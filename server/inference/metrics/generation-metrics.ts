import { Histogram, type Registry } from 'prom-client';
import type { Engine, Generation, GenerationResult, PoolingUsage, SamplingParams } from '../../../ts';
import {
  CHOICE_COUNT_BUCKETS,
  FIRST_TOKEN_BUCKETS,
  INPUT_COUNT_BUCKETS,
  REQUEST_TIME_BUCKETS,
  TOKEN_COUNT_BUCKETS,
  TOKEN_TIME_BUCKETS,
} from '../../http/buckets';
import { wrapEngine } from '../models/wrap-engine';
import type { ModelLabels } from './engine-metrics';

/** The measured options of a request. */
type MeasuredOptions = Pick<SamplingParams, 'maxTokens' | 'n'>;

/** Times and sizes of completed requests. Each request is observed once, with the times that the engine measured. */
export class GenerationMetrics {
  readonly #histograms: Readonly<Record<keyof typeof HISTOGRAMS, Histogram>>;

  constructor(registry: Registry, modelLabels: readonly string[]) {
    const make = ([key, definition]: [string, (typeof HISTOGRAMS)[keyof typeof HISTOGRAMS]]) => [
      key,
      new Histogram({ ...definition, labelNames: [...modelLabels], registers: [registry] }),
    ];
    this.#histograms = Object.fromEntries(Object.entries(HISTOGRAMS).map(make)) as Record<
      keyof typeof HISTOGRAMS,
      Histogram
    >;
  }

  /** Returns a proxy of the engine that observes every call, so that routes need no code for metrics. */
  observing(engine: Engine, labels: ModelLabels): Engine {
    const observe = (generation: Generation, options: MeasuredOptions) =>
      void generation.result().then((result) => this.#observe(labels, result, options), ignore);
    return wrapEngine(engine, {
      chat: (...[messages, options, context]: Parameters<Engine['chat']>) => {
        const generation = engine.chat(messages, options, context);
        observe(generation as Generation, options ?? {});
        return generation;
      },
      generate: (...[prompt, sampling, context]: Parameters<Engine['generate']>) => {
        const generation = engine.generate(prompt, sampling, context);
        observe(generation, sampling ?? {});
        return generation;
      },
      embed: (...call: Parameters<Engine['embed']>) =>
        this.#observePooling(labels, engine.embed(...call), ({ embeddings }) => embeddings.length),
      score: (...call: Parameters<Engine['score']>) =>
        this.#observePooling(labels, engine.score(...call), ({ scores }) => scores.length),
      rerank: (...call: Parameters<Engine['rerank']>) =>
        this.#observePooling(labels, engine.rerank(...call), ({ scores }) => scores.length),
    });
  }

  /** The engine does not measure these calls, so their time includes tokenizing. */
  async #observePooling<T extends { usage: PoolingUsage }>(
    labels: ModelLabels,
    pending: Promise<T>,
    numInputs: (result: T) => number,
  ): Promise<T> {
    const startedMs = performance.now();
    const result = await pending;
    const { latency, promptTokens, numInputs: inputs } = this.#histograms;
    latency.observe(labels, (performance.now() - startedMs) / 1000);
    promptTokens.observe(labels, result.usage.promptTokens);
    inputs.observe(labels, numInputs(result));
    return result;
  }

  #observe(labels: ModelLabels, { usage, choices }: GenerationResult, { maxTokens, n = 1 }: MeasuredOptions): void {
    const { queueMs, prefillMs, decodeMs } = usage.timings;
    const longest = Math.max(...choices.map(({ tokenIds }) => tokenIds.length));
    const histograms = this.#histograms;
    histograms.queueTime.observe(labels, queueMs / 1000);
    histograms.prefillTime.observe(labels, prefillMs / 1000);
    histograms.decodeTime.observe(labels, decodeMs / 1000);
    histograms.inferenceTime.observe(labels, (prefillMs + decodeMs) / 1000);
    histograms.latency.observe(labels, (queueMs + prefillMs + decodeMs) / 1000);
    if (longest > 0) histograms.timeToFirstToken.observe(labels, (queueMs + prefillMs) / 1000);
    if (longest > 1) histograms.timePerOutputToken.observe(labels, decodeMs / (longest - 1) / 1000);
    histograms.promptTokens.observe(labels, usage.promptTokens);
    histograms.completionTokens.observe(labels, usage.completionTokens);
    histograms.longestChoice.observe(labels, longest);
    if (maxTokens !== undefined) histograms.maxTokens.observe(labels, maxTokens);
    histograms.numChoices.observe(labels, n);
  }
}

const HISTOGRAMS = {
  timeToFirstToken: {
    name: 'capstan_time_to_first_token_seconds',
    help: 'Time from submit to the first token',
    buckets: FIRST_TOKEN_BUCKETS,
  },
  timePerOutputToken: {
    name: 'capstan_time_per_output_token_seconds',
    help: 'Mean time between tokens of a request',
    buckets: TOKEN_TIME_BUCKETS,
  },
  latency: {
    name: 'capstan_request_latency_seconds',
    help: 'Time from submit to the last token, or to the embeddings or scores',
    buckets: REQUEST_TIME_BUCKETS,
  },
  queueTime: {
    name: 'capstan_queue_time_seconds',
    help: 'Time from submit to the first step',
    buckets: REQUEST_TIME_BUCKETS,
  },
  prefillTime: {
    name: 'capstan_prefill_time_seconds',
    help: 'Time from the first step to the first token',
    buckets: REQUEST_TIME_BUCKETS,
  },
  decodeTime: {
    name: 'capstan_decode_time_seconds',
    help: 'Time from the first token to the last',
    buckets: REQUEST_TIME_BUCKETS,
  },
  inferenceTime: {
    name: 'capstan_inference_time_seconds',
    help: 'Time from the first step to the last token',
    buckets: REQUEST_TIME_BUCKETS,
  },
  promptTokens: {
    name: 'capstan_request_prompt_tokens',
    help: 'Prompt tokens per request',
    buckets: TOKEN_COUNT_BUCKETS,
  },
  completionTokens: {
    name: 'capstan_request_completion_tokens',
    help: 'Tokens generated per request, over all choices',
    buckets: TOKEN_COUNT_BUCKETS,
  },
  longestChoice: {
    name: 'capstan_request_longest_choice_tokens',
    help: 'Tokens generated for the longest choice of a request',
    buckets: TOKEN_COUNT_BUCKETS,
  },
  maxTokens: {
    name: 'capstan_request_max_tokens',
    help: 'Token limit of requests that set one',
    buckets: TOKEN_COUNT_BUCKETS,
  },
  numInputs: {
    name: 'capstan_request_inputs',
    help: 'Inputs per request for embeddings, or pairs per request for scores',
    buckets: INPUT_COUNT_BUCKETS,
  },
  numChoices: {
    name: 'capstan_request_choices',
    help: 'Choices per request',
    buckets: CHOICE_COUNT_BUCKETS,
  },
};

function ignore(): void {}
