import type { Attributes, AttributeValue } from './span';

/** A finished span. Times are milliseconds since 1970. */
export interface FinishedSpan {
  traceId: string;
  spanId: string;
  parentSpanId: string | undefined;
  traceState: string;
  name: string;
  startMs: number;
  endMs: number;
  attributes: Attributes;
  events: readonly { name: string; atMs: number }[];
  error: string | undefined;
}

const SERVER = 2;
const ERROR = 2;
const IS_SAMPLED = 1;

/** The JSON of an export request of OTLP (opentelemetry-proto 1.x). */
export function exportRequest(spans: readonly FinishedSpan[], resource: Attributes, version: string): string {
  const scope = { name: 'capstan', version };
  return JSON.stringify({
    resourceSpans: [
      {
        resource: { attributes: toKeyValues(resource) },
        scopeSpans: [{ scope, spans: spans.map(toSpan) }],
      },
    ],
  });
}

function toSpan(span: FinishedSpan): object {
  const { traceId, spanId, parentSpanId, traceState, name, startMs, endMs, attributes, events, error } = span;
  return {
    traceId,
    spanId,
    ...(traceState === '' ? {} : { traceState }),
    ...(parentSpanId === undefined ? {} : { parentSpanId }),
    flags: IS_SAMPLED,
    name,
    kind: SERVER,
    startTimeUnixNano: toNanoseconds(startMs),
    endTimeUnixNano: toNanoseconds(endMs),
    attributes: toKeyValues(attributes),
    events: events.map((event) => ({ timeUnixNano: toNanoseconds(event.atMs), name: event.name })),
    status: error === undefined ? {} : { code: ERROR, message: error },
  };
}

function toKeyValues(attributes: Attributes): object[] {
  return Object.entries(attributes).map(([key, value]) => ({ key, value: toValue(value) }));
}

function toValue(value: AttributeValue): object {
  if (typeof value === 'string') return { stringValue: value };
  if (typeof value === 'boolean') return { boolValue: value };
  if (typeof value === 'number')
    return Number.isSafeInteger(value) ? { intValue: String(value) } : { doubleValue: value };
  return { arrayValue: { values: value.map(toValue) } };
}

/** A JSON number has too few digits. */
function toNanoseconds(ms: number): string {
  return `${Math.floor(ms)}${String(Math.floor((ms % 1) * 1e6)).padStart(6, '0')}`;
}
