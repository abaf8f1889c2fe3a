/** A list has values of one type. */
export type AttributeValue = string | number | boolean | readonly string[];
export type Attributes = Readonly<Record<string, AttributeValue>>;

/** The span of the caller, from the headers of W3C Trace Context. */
export interface ParentSpan {
  /** 32 hexadecimal digits. */
  traceId: string;
  /** 16 hexadecimal digits. */
  spanId: string;
  isSampled: boolean;
  /** Value of `tracestate`, or empty. */
  traceState: string;
}

/** An open span. Times are milliseconds since 1970. */
export interface Span {
  readonly traceId: string;
  readonly spanId: string;
  readonly isSampled: boolean;
  readonly traceState: string;
  rename(name: string): void;
  set(attributes: Attributes): void;
  addEvent(name: string, atMs: number): void;
  /** @param error Why the span failed. Undefined: it did not. */
  end(atMs: number, error: string | undefined): void;
}

/** Where spans go. */
export interface SpanSink {
  /** Starts a span of kind server. */
  start(name: string, parent: ParentSpan | undefined, atMs: number): Span;
  /** Sends what is left. Never rejects. */
  close(): Promise<void>;
}

const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const MAX_TRACE_STATE_LENGTH = 512;

/** Reads the headers of W3C Trace Context. An invalid or repeated `traceparent` counts as absent. */
export function parentOf(headers: readonly (readonly [name: string, value: string])[]): ParentSpan | undefined {
  const values = (name: string): string[] => headers.filter(([header]) => header === name).map(([, value]) => value);
  const parents = values('traceparent');
  const [, version, traceId, spanId, flags, rest] = (parents.length === 1 && TRACEPARENT.exec(parents[0].trim())) || [];
  if (version === undefined || version === 'ff' || (version === '00' && rest !== undefined)) return undefined;
  if (/^0+$/.test(traceId) || /^0+$/.test(spanId)) return undefined;
  const traceState = values('tracestate').join(',');
  return {
    traceId,
    spanId,
    isSampled: (parseInt(flags, 16) & 1) === 1,
    traceState: traceState.length > MAX_TRACE_STATE_LENGTH ? '' : traceState,
  };
}

/** The headers for the next server: alternating names and values. */
export function traceHeaders({ traceId, spanId, isSampled, traceState }: Span): string[] {
  const parent = ['traceparent', `00-${traceId}-${spanId}-${isSampled ? '01' : '00'}`];
  return traceState === '' ? parent : [...parent, 'tracestate', traceState];
}
