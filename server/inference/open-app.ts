import type { Engine } from '../../ts';
import type { Log } from '../base/log';
import { type Closers, closeAll } from '../base/closers';
import { openTracing } from '../base/traces/open-tracing';
import { Cors } from '../http/cors';
import { requestLogger } from '../http/request-log';
import { App } from './app';
import { openBatches } from './batches/open-batches';
import type { OpenedModels } from './models/open-models';
import { Metrics } from './metrics/metrics';
import { openApiRoute } from './openapi/route';
import { openResponseStore } from './responses/open-store';
import { openAccess } from './serve-access';
import type { ServeOptions } from './serve-options';

const SLOW_CLIENT_TIMEOUT_MS = 60_000;

/** An application with its access check and metrics. Until `serve`, routes that need a model answer `model_loading`. */
export interface OpenedApp {
  app: App;
  serve(engine: Engine): void;
  /** As {@link OpenedApp.serve}, for models that load as engines of `observe`. */
  serveModels(models: OpenedModels): void;
  /** Returns an engine to use in place of a loaded one, which counts for the metrics. */
  observe: (engine: Engine, modelName: string) => Engine;
  /** Stops batches and closes the access check. The engine belongs to the caller. */
  close(): Promise<void>;
}

export async function openApp(options: ServeOptions, log: Log): Promise<OpenedApp> {
  const closers: Closers = [];
  try {
    return await openParts(options, log, closers);
  } catch (error) {
    await closeAll(closers);
    throw error;
  }
}

async function openParts(options: ServeOptions, log: Log, closers: Closers): Promise<OpenedApp> {
  const metrics = new Metrics({ compat: options.metricsCompat, hasSeveralModels: options.models.length > 0 });
  const access = await openAccess(options, log);
  closers.push(async () => access?.close());
  const batches = await openBatches(options, access, log);
  closers.push(() => batches.close());
  const tracing = openTracing(options.traces, log);
  closers.push(async () => tracing?.close());
  const logRequest = requestLogger(log, options);
  const responses = await openResponseStore(options);
  const app: App = new App({
    servedNames: options.servedNames,
    healthStallTimeoutMs: options.healthStallTimeoutMs,
    sse: { pingIntervalMs: options.ssePingIntervalMs, slowClientTimeoutMs: SLOW_CLIENT_TIMEOUT_MS },
    log,
    cors: new Cors(options.cors),
    ...(options.cors.overridden.has('origins') ? { allowedOrigins: options.cors.origins } : {}),
    openPaths: options.openPaths,
    prefixCacheScope: options.prefixCacheScope,
    rootPath: options.rootPath,
    settings: options.settings,
    responses,
    tracing,
    routes: [
      metrics.route,
      ...batches.routes,
      ...(options.hasOpenApi ? [openApiRoute(() => app.routes, access !== undefined)] : []),
    ],
    onEnd: (record) => {
      metrics.onEnd(record);
      logRequest(record);
    },
    ...(options.loraDir === undefined ? {} : { loraDir: options.loraDir }),
    ...(access === undefined ? {} : { access: metrics.counting(access) }),
    ...(options.replicaSecret === undefined ? {} : { replicaSecret: options.replicaSecret }),
  });
  metrics.watch(app);
  return {
    app,
    observe: (engine, name) => metrics.observe(engine, name),
    serveModels: ({ models, engineModels }) => {
      metrics.watchModels(engineModels, models.pool);
      app.serveModels(models);
      batches.serve(app, () => models.loaded);
    },
    serve: (engine) => {
      const observed = metrics.observing(engine, options.servedNames[0] ?? engine.info.modelName);
      app.serve(observed);
      batches.serve(app, () => [{ engine: observed }]);
    },
    close: () => closeAll(closers),
  };
}
