import { CapstanError } from '../../ts';
import type { App } from './app';
import { type Closers, runAndClose } from '../base/closers';
import { UsageError } from '../base/usage-error';
import { createTransport } from '../http/create-transport';
import { listenProblem } from '../http/port';
import type { HttpHandler, Transport } from '../http/transport';
import { createLog, type Log } from '../base/log';
import { loadFirst, type OpenedModels, openModels } from './models/open-models';
import { openApp } from './open-app';
import { needsKey } from './serve-access';
import type { ServeOptions } from './serve-options';
import { Shutdown } from '../base/shutdown';
import { type Address, severalText, startupText } from './startup-text';
import { withTimeout } from '../base/with-timeout';

const LOOPBACK = '127.0.0.1';
/** Time limit for sending the last errors at shutdown to clients that do not read, or that do not finish their body. */
const LAST_ERRORS_TIMEOUT_MS = 2_000;

/**
 * Serves until SIGINT or SIGTERM. Resolves with the exit code. Binds the port before the model is loaded, so that a
 * port conflict shows at once.
 */
export function serve(options: ServeOptions): Promise<number> {
  const log = createLog(options.logLevel, [
    ...options.apiKeys,
    options.tls.passphrase ?? '',
    options.replicaSecret ?? '',
  ]);
  for (const flag of options.ignored) log.warn({ flag }, 'this flag has no effect');
  return runAndClose(
    (closers) => runServer(options, log, closers),
    ({ message }) => log.error({ reason: message }, 'cannot end a part of the server cleanly'),
  );
}

async function runServer(options: ServeOptions, log: Log, closers: Closers): Promise<number> {
  const shutdown = new Shutdown();
  closers.push(() => shutdown.dispose());
  try {
    const opened = await openApp(options, log);
    closers.push(() => opened.close());
    const { app } = opened;
    const transport = await openTransport(options, (request, reply) => app.handle(request, reply), true);
    closers.push(() => transport.close());
    const port = await listen(transport, options, '--port');
    const adminPort = options.adminPort === undefined ? undefined : await openAdmin(options, app, closers);
    const loaded = await openModels(options, { signal: shutdown.signal, log, observe: opened.observe });
    // Closing the engines ends open requests with an error. Their connections close after that.
    closers.push(() => loaded.models.pool.close().then(() => withTimeout(LAST_ERRORS_TIMEOUT_MS, app.drain())));
    opened.serveModels(loaded);
    await loadFirst(loaded, options.models, shutdown.signal);
    const { host, socketPath, adminHost = LOOPBACK } = options;
    process.stdout.write(
      startText(loaded, {
        host,
        port,
        socketPath,
        transport: transport.name,
        isTls: options.tls.certFile !== undefined,
        needsKey: needsKey(options),
        isReplica: options.replicaSecret !== undefined,
        ...(adminPort === undefined ? {} : { admin: { host: adminHost, port: adminPort } }),
      }),
    );
    await shutdown.requested;
    await drain(app, transport, options, log);
    return 0;
  } catch (error) {
    // A signal arrived while the model was loading.
    if (error instanceof CapstanError && error.code === 'aborted') return 0;
    throw error;
  }
}

function startText({ models, engineModels }: OpenedModels, address: Omit<Address, 'model'>): string {
  const { only } = models;
  const engine = only?.slot.engine;
  if (only !== undefined && engine !== undefined)
    return startupText(engine.info, { ...address, model: only.served.names[0] });
  const listed = engineModels.map(({ name, info: { task }, status, neededBytes }) => ({
    name,
    task,
    state: status.value,
    neededBytes,
  }));
  return severalText(listed, models.pool.limits.memoryBytes, { ...address, model: listed[0].name });
}

async function openTransport(
  {
    transport,
    maxRequestBytes,
    bodyTimeoutMs,
    keepAliveTimeoutMs,
    tls: { keyFile, certFile, passphrase },
  }: ServeOptions,
  handler: HttpHandler,
  isPublic: boolean,
): Promise<Transport> {
  const tls =
    isPublic && keyFile !== undefined && certFile !== undefined
      ? { tls: { keyFile, certFile, ...(passphrase === undefined ? {} : { passphrase }) } }
      : {};
  const limits = { maxBodyBytes: maxRequestBytes, bodyTimeoutMs, keepAliveTimeoutMs };
  return createTransport(transport, { handler, ...limits, ...tls }).catch((error: Error) => {
    throw new UsageError(error.message);
  });
}

/** Opens the admin listener: health and metrics over plain HTTP, without a key. */
async function openAdmin(options: ServeOptions, app: App, closers: Closers): Promise<number> {
  const transport = await openTransport(options, (request, reply) => app.handleAdmin(request, reply), false);
  closers.push(() => transport.close());
  const address = { host: options.adminHost ?? LOOPBACK, port: options.adminPort ?? 0, socketPath: undefined };
  return listen(transport, address, '--admin-port');
}

async function listen(
  transport: Transport,
  { host, port, socketPath }: Pick<ServeOptions, 'host' | 'port' | 'socketPath'>,
  portFlag: string,
): Promise<number> {
  try {
    if (socketPath === undefined) return await transport.listen(host, port);
    await transport.listenUnix(socketPath);
    return 0;
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const reason = socketPath === undefined ? listenProblem(error as Error, portFlag) : message;
    throw Object.assign(new Error(`cannot listen on ${socketPath ?? `${host}:${port}`}: ${reason}`), { code });
  }
}

async function drain(app: App, transport: Transport, { shutdownTimeoutMs }: ServeOptions, log: Log): Promise<void> {
  transport.stopListening();
  if (app.numOpenRequests > 0)
    log.info(
      { open: app.numOpenRequests, timeoutMs: shutdownTimeoutMs },
      'shutting down after the open requests end; send the signal again to exit at once',
    );
  await withTimeout(shutdownTimeoutMs, app.drain());
}
