import { CapstanError, Engine } from '../ts';
import { App } from './app';
import { type ServeOptions, UsageError } from './flags';
import { createTransport } from './http/create-transport';
import type { Transport } from './http/transport';
import { createLog, type Log } from './log';
import { Metrics } from './metrics/metrics';
import { Shutdown } from './shutdown';
import { startupText } from './startup-text';

const SLOW_CLIENT_TIMEOUT_MS = 60_000;

/** Serves until a signal comes; resolves with the exit code. The port is bound first, so that a conflict costs no load. */
export async function serve(options: ServeOptions): Promise<number> {
  const log = createLog(options.logLevel);
  for (const flag of options.ignored) log.warn({ flag }, 'this flag has no effect here');
  const metrics = new Metrics({ compat: 'none' });
  const app = new App({
    servedNames: options.servedNames,
    healthStallTimeoutMs: options.healthStallTimeoutMs,
    sse: { pingIntervalMs: options.ssePingIntervalMs, slowClientTimeoutMs: SLOW_CLIENT_TIMEOUT_MS },
    log,
    routes: [metrics.route],
    onEnd: metrics.onEnd,
  });
  metrics.watch(app);
  const shutdown = new Shutdown();
  const transport = await createTransport(options.transport, {
    handler: (request, reply) => app.handle(request, reply), maxBodyBytes: options.maxRequestBytes, bodyTimeoutMs: options.bodyTimeoutMs,
  }).catch((error: Error) => { throw new UsageError(error.message); });
  let engine: Engine | undefined;
  try {
    const port = await listen(transport, options);
    engine = await loadEngine(options, shutdown.signal, log);
    app.serve(metrics.observing(engine, options.servedNames[0] ?? engine.info.modelName));
    process.stdout.write(startupText(engine.info, { ...options, port, transport: transport.name, model: options.servedNames[0] ?? engine.info.modelName }));
    await shutdown.requested;
    await drain(app, transport, options, log);
    return 0;
  } catch (error) {
    // Ctrl-C while loading.
    if (error instanceof CapstanError && error.code === 'aborted') return 0;
    throw error;
  } finally {
    // Ends what is still open, with an error event in streams; then the connections may go.
    await engine?.close();
    await app.drain();
    await transport.close();
    shutdown.dispose();
  }
}

async function listen(transport: Transport, { host, port }: ServeOptions): Promise<number> {
  try {
    return await transport.listen(host, port);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    throw Object.assign(new Error(code === 'EADDRINUSE' || code === 'EACCES' ? `cannot listen on ${host}:${port}: ${code === 'EACCES' ? 'not allowed' : 'the port is taken or the address is not this machine\'s'}` : message), { code });
  }
}

async function loadEngine({ model, engine: options }: ServeOptions, signal: AbortSignal, log: Log): Promise<Engine> {
  const engine = await Engine.load(model, { ...options, signal });
  for (const note of engine.info.notes) log.info(note);
  return engine;
}

async function drain(app: App, transport: Transport, { shutdownTimeoutMs }: ServeOptions, log: Log): Promise<void> {
  transport.stopListening();
  if (app.numOpenRequests > 0) log.info({ open: app.numOpenRequests, timeoutMs: shutdownTimeoutMs }, 'shutting down once the open requests are answered; again to stop at once');
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<void>((resolve) => { timer = setTimeout(resolve, shutdownTimeoutMs); });
  await Promise.race([app.drain(), timeout]);
  clearTimeout(timer);
}
