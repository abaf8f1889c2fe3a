import type * as Api from '@opentelemetry/api';
import { CapstanError } from '../../../ts';
import { requireNative } from '../native-require';
import { packageVersion } from '../version';
import type { ParentSpan, Span, SpanSink } from './span';

/** A tracer provider of OpenTelemetry, such as that of `trace.getTracerProvider()` in `@opentelemetry/api`. */
export interface TracerProvider {
  /** Returns a tracer. */
  getTracer(name: string, version?: string): object;
}

/** Spans of a tracer provider that belongs to the application. */
export class ApiSink implements SpanSink {
  readonly #api: typeof Api;
  readonly #tracer: Api.Tracer;

  /** @throws CapstanError `invalid_argument` for no provider, or without the package `@opentelemetry/api`. */
  constructor(provider: TracerProvider) {
    if (typeof provider.getTracer !== 'function')
      throw CapstanError.argument('tracerProvider', 'a tracer provider of OpenTelemetry', provider);
    this.#api = loadApi();
    this.#tracer = provider.getTracer('capstan', packageVersion()) as Api.Tracer;
  }

  start(name: string, parent: ParentSpan | undefined, startTime: number): Span {
    const { ROOT_CONTEXT, trace, TraceFlags, SpanKind, SpanStatusCode, createTraceState } = this.#api;
    // Without a parent in the headers, the span of the application's own request handler is the parent.
    const context =
      parent === undefined
        ? this.#api.context.active()
        : trace.setSpanContext(ROOT_CONTEXT, {
            traceId: parent.traceId,
            spanId: parent.spanId,
            traceFlags: parent.isSampled ? TraceFlags.SAMPLED : TraceFlags.NONE,
            traceState: createTraceState(parent.traceState),
            isRemote: true,
          });
    const span = this.#tracer.startSpan(name, { kind: SpanKind.SERVER, startTime }, context);
    const { traceId, spanId, traceFlags, traceState } = span.spanContext();
    return {
      traceId,
      spanId,
      isSampled: (traceFlags & TraceFlags.SAMPLED) !== 0,
      traceState: traceState?.serialize() ?? '',
      rename: (next) => void span.updateName(next),
      set: (attributes) => void span.setAttributes(attributes),
      addEvent: (event, atMs) => void span.addEvent(event, atMs),
      end: (atMs, error) => {
        if (error !== undefined) span.setStatus({ code: SpanStatusCode.ERROR, message: error });
        span.end(atMs);
      },
    };
  }

  /** The application closes its provider. */
  async close(): Promise<void> {}
}

function loadApi(): typeof Api {
  try {
    return requireNative('@opentelemetry/api') as typeof Api;
  } catch (cause) {
    throw new CapstanError(
      'invalid_argument',
      'tracerProvider: expected the package @opentelemetry/api beside capstan, which is not installed.\n' +
        'Next: npm install @opentelemetry/api',
      { param: 'tracerProvider', cause },
    );
  }
}
