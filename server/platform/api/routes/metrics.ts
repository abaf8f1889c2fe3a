import { addHistogram, countOf, type Histogram, newHistogram, percentile } from '../../usage/histogram';
import type { UsageReport, UsageTotals } from '../../usage/usage-store';
import { input } from '../json-schema';
import { Metrics } from '../objects';
import { ApiProblem } from '../problem';
import { type ApiRoute, defineRoute } from '../route';

const MINUTE_MS = 60_000;
const DEFAULT_RANGE_MS = 3_600_000;
const MAX_POINTS = 1_500;
const DEFAULT_POINTS = 60;

const MetricsQuery = input({
  from: { type: 'string', format: 'date-time', maxLength: 40, description: 'Default: one hour before `to`' },
  to: { type: 'string', format: 'date-time', maxLength: 40, description: 'Default: now' },
  step: {
    type: 'integer',
    minimum: 60,
    maximum: 86_400,
    description: 'Seconds per point, a multiple of 60. Default: about sixty points',
  },
  key: { type: 'string', maxLength: 64, description: 'Id of a key: only requests with this key' },
});

interface Range {
  fromMinute: number;
  toMinute: number;
  stepMinutes: number;
}

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: '/api/v1/deployments/{id}/metrics',
    summary: 'Get requests, tokens, latencies and resource usage of a deployment',
    tag: 'deployments',
    auth: 'any',
    query: MetricsQuery,
    responses: { 200: Metrics },
    problems: ['invalid_argument'],
    handle: async ({ context: { store, serving, now }, actor, params, query }) => {
      const { id: deploymentId } = await store.demandDeployment(actor, params.id, 'read');
      const range = rangeOf(query, now());
      const report = await store.readUsageReport({
        deploymentId,
        ...range,
        ...(query.key === undefined ? {} : { keyId: query.key }),
      });
      return {
        status: 200,
        body: toMetrics(
          range,
          report,
          serving?.targets.findById(deploymentId)?.replicas.some(({ isBuiltin }) => isBuiltin) === true,
        ),
      };
    },
  }),
];

function rangeOf({ from, to, step }: { from?: string; to?: string; step?: number }, nowMs: number): Range {
  const toMs = to === undefined ? nowMs : Date.parse(to);
  const fromMs = from === undefined ? toMs - DEFAULT_RANGE_MS : Date.parse(from);
  if (fromMs >= toMs) throw new ApiProblem('invalid_argument', '?from: expected a time before `to`');
  const stepMinutes =
    step === undefined ? Math.max(1, Math.ceil((toMs - fromMs) / MINUTE_MS / DEFAULT_POINTS)) : step / 60;
  if (!Number.isInteger(stepMinutes))
    throw new ApiProblem('invalid_argument', `?step: expected a multiple of 60, got ${step}`);
  const stepMs = stepMinutes * MINUTE_MS;
  const range = {
    fromMinute: Math.floor(fromMs / stepMs) * stepMinutes,
    toMinute: Math.ceil(toMs / stepMs) * stepMinutes,
    stepMinutes,
  };
  const numPoints = (range.toMinute - range.fromMinute) / stepMinutes;
  if (numPoints > MAX_POINTS)
    throw new ApiProblem('invalid_argument', `?step: expected at most ${MAX_POINTS} points, got ${numPoints}`);
  return range;
}

/** Totals of one step. */
interface Point {
  requests: number;
  clientErrors: number;
  errors: number;
  requestsWithUsage: number;
  promptTokens: number;
  completionTokens: number;
  cachedTokens: number;
  latency: Histogram;
  firstByte: Histogram;
}

const CLIENT_ERROR = 4;
const PERCENTILES = [50, 75, 90, 95, 99];

function toMetrics(
  { fromMinute, toMinute, stepMinutes }: Range,
  { buckets, resources, keys }: UsageReport,
  isBuiltin: boolean,
): Metrics {
  const first = fromMinute / stepMinutes;
  const points = Array.from({ length: (toMinute - fromMinute) / stepMinutes }, newPoint);
  for (const totals of buckets) addTotals(points[totals.bucket - first], totals);
  const used = new Map(resources.map((resource) => [resource.bucket - first, resource]));
  const time = (index: number) => new Date((first + index) * stepMinutes * MINUTE_MS).toISOString();
  const series = (name: string, unit: string, value: (point: Point, index: number) => number | null | undefined) => ({
    name,
    unit,
    points: points.map((point, i): [string, number | null] => [time(i), rounded(value(point, i))]),
  });
  const durations = (name: 'latency' | 'first_byte', histogramOf: (point: Point) => Histogram) => [
    series(`${name}_avg_ms`, 'ms', (point) => average(histogramOf(point))),
    series(`${name}_max_ms`, 'ms', (point) => (countOf(histogramOf(point)) === 0 ? null : histogramOf(point).maxMs)),
    ...PERCENTILES.map((q) => series(`${name}_p${q}_ms`, 'ms', (point) => percentile(histogramOf(point), q / 100))),
  ];
  return {
    from: time(0),
    to: time(points.length),
    step_s: stepMinutes * 60,
    tokens_counted: isBuiltin || points.some(({ requestsWithUsage }) => requestsWithUsage > 0),
    series: [
      series('requests', 'requests', ({ requests }) => requests),
      series('errors', 'requests', ({ errors }) => errors),
      series('client_errors', 'requests', ({ clientErrors }) => clientErrors),
      series('prompt_tokens', 'tokens', ({ promptTokens }) => promptTokens),
      series('completion_tokens', 'tokens', ({ completionTokens }) => completionTokens),
      series('cached_tokens', 'tokens', ({ cachedTokens }) => cachedTokens),
      ...durations('latency', ({ latency }) => latency),
      ...durations('first_byte', ({ firstByte }) => firstByte),
      series('cpu_percent', 'percent', (_point, i) => used.get(i)?.cpuPercent),
      series('memory_mb', 'MB', (_point, i) => used.get(i)?.memoryMb),
    ],
    keys: keys.map(({ keyId, name, display, requests, errors, promptTokens, completionTokens }) => ({
      key_id: keyId,
      name,
      display,
      requests,
      errors,
      prompt_tokens: promptTokens,
      completion_tokens: completionTokens,
    })),
  };
}

function newPoint(): Point {
  return {
    requests: 0,
    clientErrors: 0,
    errors: 0,
    requestsWithUsage: 0,
    promptTokens: 0,
    completionTokens: 0,
    cachedTokens: 0,
    latency: newHistogram(),
    firstByte: newHistogram(),
  };
}

function addTotals(point: Point, totals: UsageTotals): void {
  for (const field of ['requests', 'requestsWithUsage', 'promptTokens', 'completionTokens', 'cachedTokens'] as const)
    point[field] += totals[field];
  if (totals.statusClass === CLIENT_ERROR) point.clientErrors += totals.requests;
  if (totals.statusClass > CLIENT_ERROR) point.errors += totals.requests;
  addHistogram(point.latency, totals.latency);
  addHistogram(point.firstByte, totals.firstByte);
}

function average(histogram: Histogram): number | null {
  const count = countOf(histogram);
  return count === 0 ? null : histogram.sumMs / count;
}

function rounded(value: number | null | undefined): number | null {
  return value === null || value === undefined ? null : Math.round(value * 100) / 100;
}
