import { type Attributes, parentOf, type Span, type SpanSink, traceHeaders } from './span';

/** The request that a span is for. Its `path` may have a prefix. */
interface TracedRequest {
  readonly method: string;
  readonly headers: readonly (readonly [name: string, value: string])[];
}

const INFERENCE = /\/(?:v\d\/)?(chat\/completions|completions|messages|responses|embeddings|rerank|score)$/;
/** `gen_ai.operation.name`, by the end of the path. The conventions allow names beyond their own list. */
const OPERATIONS: Readonly<Record<string, string>> = {
  'chat/completions': 'chat',
  completions: 'text_completion',
  messages: 'chat',
  responses: 'chat',
  embeddings: 'embeddings',
  rerank: 'rerank',
  score: 'score',
};

/** Traces the inference requests of a server. */
export class Tracing {
  readonly #sink: SpanSink;

  constructor(sink: SpanSink) {
    this.#sink = sink;
  }

  /** Returns undefined for requests that run no model. @param startedMs Monotonic milliseconds. */
  start(request: TracedRequest, path: string, startedMs: number): RequestTrace | undefined {
    const [, name] = (request.method === 'POST' && INFERENCE.exec(path)) || [];
    if (name === undefined) return undefined;
    const operation = OPERATIONS[name];
    const span = this.#sink.start(operation, parentOf(request.headers), toEpoch(startedMs));
    span.set({
      'gen_ai.operation.name': operation,
      'gen_ai.provider.name': 'capstan',
      'http.request.method': request.method,
    });
    return new RequestTrace(span, operation, startedMs);
  }

  close(): Promise<void> {
    return this.#sink.close();
  }
}

/** The span of one request, by OpenTelemetry's conventions for generative AI. It never holds prompts or answers. */
export class RequestTrace {
  readonly startedMs: number;
  readonly #span: Span;
  readonly #operation: string;
  readonly #pending: Promise<unknown>[] = [];
  #failure: string | undefined;

  constructor(span: Span, operation: string, startedMs: number) {
    this.#span = span;
    this.#operation = operation;
    this.startedMs = startedMs;
  }

  /** Headers for the next server: alternating names and values. */
  get headers(): string[] {
    return traceHeaders(this.#span);
  }

  /** Sets the model or the deployment that the request asks for. */
  nameModel(model: string): void {
    this.#span.rename(`${this.#operation} ${model}`);
    this.#span.set({ 'gen_ai.request.model': model });
  }

  set(attributes: Attributes): void {
    this.#span.set(attributes);
  }

  /** @param atMs Monotonic milliseconds. */
  addEvent(name: string, atMs: number): void {
    this.#span.addEvent(name, toEpoch(atMs));
  }

  /** The first failure counts. */
  fail(type: string): void {
    this.#failure ??= type;
  }

  /** The span ends after the promise, whose result it describes. */
  await(promise: Promise<unknown>): void {
    this.#pending.push(promise);
  }

  /** @param route The path of the route, without values. */
  end(status: number, route: string | undefined): void {
    const endMs = toEpoch(performance.now());
    void Promise.allSettled(this.#pending).then(() => {
      const failure = this.#failure ?? (status >= 400 ? String(status) : undefined);
      this.#span.set({
        'http.response.status_code': status,
        ...(route === undefined ? {} : { 'http.route': route }),
        ...(failure === undefined ? {} : { 'error.type': failure }),
      });
      // An error of the client is none of the server (OpenTelemetry's conventions for HTTP).
      const isFault = failure !== undefined && (status < 400 || status >= 500);
      this.#span.end(endMs, isFault ? failure : undefined);
    });
  }
}

/** Monotonic milliseconds as milliseconds since 1970. */
function toEpoch(ms: number): number {
  return Date.now() + ms - performance.now();
}
