import {
  CapstanError,
  type Engine,
  type Generation,
  type GenerationResult,
  type PoolingUsage,
  type SamplingParams,
} from '../../ts';
import type { RequestTrace } from '../base/traces/request-trace';
import type { Attributes } from '../base/traces/span';
import { wrapEngine } from './models/wrap-engine';

/** Returns the engine for one request: its calls are described in the span of the request. */
export function tracedEngine(engine: Engine, trace: RequestTrace): Engine {
  const totals = { input: 0, output: 0, cached: 0, reasons: [] as string[] };
  trace.set({ 'gen_ai.response.model': engine.info.modelName });

  const describe = (id: string, { usage, choices }: GenerationResult): void => {
    const { queueMs, prefillMs, decodeMs } = usage.timings;
    totals.input += usage.promptTokens;
    totals.output += usage.completionTokens;
    totals.cached += usage.cachedTokens;
    totals.reasons.push(...choices.map(({ finishReason }) => finishReason));
    const attributes = {
      'gen_ai.response.id': id,
      'gen_ai.response.finish_reasons': totals.reasons,
      'gen_ai.usage.input_tokens': totals.input,
      'gen_ai.usage.output_tokens': totals.output,
      'gen_ai.usage.cache_read.input_tokens': totals.cached,
      // vLLM's names.
      'gen_ai.latency.time_in_queue': queueMs / 1000,
      'gen_ai.latency.time_in_model_prefill': prefillMs / 1000,
      'gen_ai.latency.time_in_model_decode': decodeMs / 1000,
    };
    trace.set(attributes);
    if (usage.completionTokens === 0 || totals.output > usage.completionTokens) return;
    const firstTokenMs = performance.now() - decodeMs;
    trace.addEvent('gen_ai.first_token', firstTokenMs);
    trace.set({ 'gen_ai.latency.time_to_first_token': (firstTokenMs - trace.startedMs) / 1000 });
  };

  const watch = <G extends Generation>(generation: G, options: SamplingParams = {}): G => {
    trace.set(requestAttributes(options));
    if (options.adapter !== undefined) trace.nameModel(options.adapter);
    trace.await(generation.result().then((result) => describe(generation.id, result), fail(trace)));
    return generation;
  };

  const pool = <T extends { usage: PoolingUsage }>(pending: Promise<T>): Promise<T> => {
    const described = pending.then(({ usage }) => {
      trace.set({
        'gen_ai.usage.input_tokens': usage.promptTokens,
        'gen_ai.usage.cache_read.input_tokens': usage.cachedTokens,
      });
    }, fail(trace));
    trace.await(described);
    return pending;
  };

  return wrapEngine(engine, {
    chat: (messages, options, context) => watch(engine.chat(messages, options, context) as Generation, options),
    generate: (prompt, options, context) => watch(engine.generate(prompt, options, context), options),
    embed: (...call) => pool(engine.embed(...call)),
    score: (...call) => pool(engine.score(...call)),
    rerank: (...call) => pool(engine.rerank(...call)),
  });
}

function fail(trace: RequestTrace): (error: unknown) => void {
  return (error) => trace.fail(CapstanError.from(error).code);
}

/** The sampling parameters that the request sets. */
function requestAttributes(options: SamplingParams): Attributes {
  const { maxTokens, temperature, topP, topK, frequencyPenalty, presencePenalty, seed, n = 1 } = options;
  const values = {
    'gen_ai.request.max_tokens': maxTokens,
    'gen_ai.request.temperature': temperature,
    'gen_ai.request.top_p': topP,
    'gen_ai.request.top_k': topK,
    'gen_ai.request.frequency_penalty': frequencyPenalty,
    'gen_ai.request.presence_penalty': presencePenalty,
    'gen_ai.request.seed': seed === undefined ? undefined : Number(seed),
    'gen_ai.request.choice.count': n === 1 ? undefined : n,
    'gen_ai.output.type': options.structuredOutput?.type === 'json' ? 'json' : 'text',
  };
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as Attributes;
}
