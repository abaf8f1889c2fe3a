import type { Log } from '../log';
import { UsageError } from '../usage-error';
import { packageVersion } from '../version';
import { ApiSink, type TracerProvider } from './api-sink';
import { OtlpSink } from './otlp-sink';
import { Tracing } from './request-trace';
import { samplerOf } from './sampler';

export interface TracingOptions {
  /** The collector of `--otlp-traces-endpoint`. */
  endpoint: string | undefined;
  /** The application's own provider. It takes precedence. */
  provider?: TracerProvider | undefined;
  /** `service.name`, unless `OTEL_SERVICE_NAME` sets another. */
  serviceName: string;
}

const TRACES_PATH = '/v1/traces';
const DEFAULT_TIMEOUT_MS = 10_000;

/**
 * Returns undefined without a provider and without an endpoint, in the options or in the environment variables of
 * OpenTelemetry.
 * @throws UsageError for a value that is invalid.
 */
export function openTracing(options: TracingOptions, log: Log, env = process.env): Tracing | undefined {
  if (options.provider !== undefined) return new Tracing(new ApiSink(options.provider));
  const url = endpointOf(options.endpoint, env);
  if (url === undefined) return undefined;
  const timeoutMs =
    Number(env.OTEL_EXPORTER_OTLP_TRACES_TIMEOUT || env.OTEL_EXPORTER_OTLP_TIMEOUT) || DEFAULT_TIMEOUT_MS;
  return new Tracing(
    new OtlpSink({
      url,
      headers: pairsOf(
        'OTEL_EXPORTER_OTLP_HEADERS',
        env.OTEL_EXPORTER_OTLP_TRACES_HEADERS || env.OTEL_EXPORTER_OTLP_HEADERS,
      ),
      timeoutMs,
      resource: {
        'service.version': packageVersion(),
        ...pairsOf('OTEL_RESOURCE_ATTRIBUTES', env.OTEL_RESOURCE_ATTRIBUTES),
        'service.name': env.OTEL_SERVICE_NAME || options.serviceName,
      },
      sampler: samplerOf(env),
      log,
    }),
  );
}

function endpointOf(flag: string | undefined, env: NodeJS.ProcessEnv): URL | undefined {
  if (flag !== undefined) return toUrl('--otlp-traces-endpoint', flag, '');
  if (env.OTEL_SDK_DISABLED?.toLowerCase() === 'true' || env.OTEL_TRACES_EXPORTER === 'none') return undefined;
  const { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: traces, OTEL_EXPORTER_OTLP_ENDPOINT: all } = env;
  if (traces) return toUrl('OTEL_EXPORTER_OTLP_TRACES_ENDPOINT', traces, '');
  return all ? toUrl('OTEL_EXPORTER_OTLP_ENDPOINT', all, TRACES_PATH) : undefined;
}

/** @param suffix What the variable for all signals lacks. A URL without a path gets it too. */
function toUrl(source: string, value: string, suffix: string): URL {
  const url = URL.canParse(value) ? new URL(value) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol))
    throw new UsageError(
      `${source}: expected the URL of a collector for OTLP over HTTP, for example http://127.0.0.1:4318, got ${value}`,
    );
  if (url.pathname === '/') url.pathname = TRACES_PATH;
  else if (suffix !== '') url.pathname = url.pathname.replace(/\/$/, '') + suffix;
  return url;
}

/** Reads `name=value,name=value` with percent-encoded values. */
function pairsOf(source: string, text = ''): Record<string, string> {
  const pairs = text.split(',').filter((pair) => pair.trim() !== '');
  return Object.fromEntries(
    pairs.map((pair) => {
      const [name, ...rest] = pair.split('=');
      const value = decoded(rest.join('=').trim());
      // The value may be a secret.
      if (rest.length === 0 || name.trim() === '' || value === undefined)
        throw new UsageError(`${source}: expected NAME=VALUE with percent-encoded values, separated by commas`);
      return [name.trim(), value];
    }),
  );
}

function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text);
  } catch {
    return undefined;
  }
}
