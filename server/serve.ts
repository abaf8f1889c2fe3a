import { CapstanError, Engine } from '../ts';
import { App } from './app';
import { Cors } from './cors';
import { UsageError } from './flag-values';
import { createTransport } from './http/create-transport';
import type { HttpHandler, Transport } from './http/transport';
import { LoadProgress } from './load-progress';
import { createLog, type Log, requestLogger } from './log';
import { Metrics } from './metrics/metrics';
import { openApiRoute } from './openapi/route';
import { inFlags } from './option-flags';
import { openAccess } from './serve-access';
import type { ServeOptions } from './serve-options';
import { Shutdown } from './shutdown';
import { startupText } from './startup-text';
import { within } from './within';

const SLOW_CLIENT_TIMEOUT_MS = 60_000;
const LOOPBACK = '127.0.0.1';
/** For the errors that end what is open at last: a client that does not read them, or sends no more of its body, keeps no server from its end. */
const LAST_WORDS_MS = 2_000;

/** Serves until a signal comes; resolves with the exit code. The port is bound first, so that a conflict costs no load. */
export async function serve(options: ServeOptions): Promise<number> {
  const log = createLog(options.logLevel, [
    ...options.apiKeys,
    options.tls.passphrase ?? '',
    options.replicaSecret ?? '',
  ]);
  for (const flag of options.ignored) log.warn({ flag }, 'this flag has no effect here');
  const metrics = new Metrics({ compat: options.metricsCompat });
  const shutdown = new Shutdown();
  // What was opened, to be closed in the opposite order.
  const closers: (() => Promise<void>)[] = [() => Promise.resolve(shutdown.dispose())];
  try {
    const access = await openAccess(options, log);
    if (access !== undefined) closers.push(() => access.close());
    const logRequest = requestLogger(log, options);
    const app: App = new App({
      servedNames: options.servedNames,
      healthStallTimeoutMs: options.healthStallTimeoutMs,
      sse: { pingIntervalMs: options.ssePingIntervalMs, slowClientTimeoutMs: SLOW_CLIENT_TIMEOUT_MS },
      log,
      cors: new Cors(options.cors),
      openPaths: options.openPaths,
      prefixCacheScope: options.prefixCacheScope,
      rootPath: options.rootPath,
      settings: options.settings,
      routes: [metrics.route, ...(options.hasOpenApi ? [openApiRoute(() => app.routes, access !== undefined)] : [])],
      onEnd: (record) => {
        metrics.onEnd(record);
        logRequest(record);
      },
      ...(access === undefined ? {} : { access: metrics.counting(access) }),
      ...(options.replicaSecret === undefined ? {} : { replicaSecret: options.replicaSecret }),
    });
    metrics.watch(app);
    const transport = await openTransport(options, (request, reply) => app.handle(request, reply), true);
    closers.push(() => transport.close());
    const port = await listen(transport, options);
    const adminPort = options.adminPort === undefined ? undefined : await openAdmin(options, app, closers);
    const engine = await loadEngine(options, shutdown.signal, log);
    // Ends what is still open, with an error event in streams; then the connections may go.
    closers.push(() => engine.close().then(() => within(LAST_WORDS_MS, app.drain())));
    app.serve(metrics.observing(engine, options.servedNames[0] ?? engine.info.modelName));
    const { host, socketPath, adminHost = LOOPBACK } = options;
    process.stdout.write(
      startupText(engine.info, {
        host,
        port,
        socketPath,
        transport: transport.name,
        model: options.servedNames[0] ?? engine.info.modelName,
        isTls: options.tls.certFile !== undefined,
        needsKey: access !== undefined,
        isReplica: options.replicaSecret !== undefined,
        ...(adminPort === undefined ? {} : { admin: { host: adminHost, port: adminPort } }),
      }),
    );
    await shutdown.requested;
    await drain(app, transport, options, log);
    return 0;
  } catch (error) {
    // Ctrl-C while loading.
    if (error instanceof CapstanError && error.code === 'aborted') return 0;
    throw error;
  } finally {
    for (const close of closers.reverse()) await close();
  }
}

async function openTransport(
  { transport, maxRequestBytes, bodyTimeoutMs, tls: { keyFile, certFile, passphrase } }: ServeOptions,
  handler: HttpHandler,
  isPublic: boolean,
): Promise<Transport> {
  const tls =
    isPublic && keyFile !== undefined && certFile !== undefined
      ? { tls: { keyFile, certFile, ...(passphrase === undefined ? {} : { passphrase }) } }
      : {};
  return createTransport(transport, { handler, maxBodyBytes: maxRequestBytes, bodyTimeoutMs, ...tls }).catch(
    (error: Error) => {
      throw new UsageError(error.message);
    },
  );
}

/** Plain HTTP for probes and scrapers: health and metrics, without a key. */
async function openAdmin(options: ServeOptions, app: App, closers: (() => Promise<void>)[]): Promise<number> {
  const transport = await openTransport(options, (request, reply) => app.handleAdmin(request, reply), false);
  closers.push(() => transport.close());
  return listen(transport, {
    host: options.adminHost ?? LOOPBACK,
    port: options.adminPort ?? 0,
    socketPath: undefined,
  });
}

async function listen(
  transport: Transport,
  { host, port, socketPath }: Pick<ServeOptions, 'host' | 'port' | 'socketPath'>,
): Promise<number> {
  try {
    if (socketPath === undefined) return await transport.listen(host, port);
    await transport.listenUnix(socketPath);
    return 0;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const isTaken = socketPath === undefined && (code === 'EADDRINUSE' || code === 'EACCES');
    const reason = isTaken
      ? code === 'EACCES'
        ? 'not allowed'
        : "the port is taken or the address is not this machine's"
      : message;
    throw Object.assign(new Error(`cannot listen on ${socketPath ?? `${host}:${port}`}: ${reason}`), { code });
  }
}

async function loadEngine({ model, engine: options }: ServeOptions, signal: AbortSignal, log: Log): Promise<Engine> {
  const progress = new LoadProgress(log);
  try {
    const engine = await Engine.load(model, { ...options, signal }, (done) => progress.update(done));
    for (const note of engine.info.notes) log.info(note);
    return engine;
  } catch (error) {
    throw inFlags(error);
  } finally {
    progress.end();
  }
}

async function drain(app: App, transport: Transport, { shutdownTimeoutMs }: ServeOptions, log: Log): Promise<void> {
  transport.stopListening();
  if (app.numOpenRequests > 0)
    log.info(
      { open: app.numOpenRequests, timeoutMs: shutdownTimeoutMs },
      'shutting down once the open requests are answered; again to stop at once',
    );
  await within(shutdownTimeoutMs, app.drain());
}
