import { Access, describeLocation } from './access';
import { Api } from './api/api';
import { apiRoutes } from './api/routes';
import { Targets } from './gateway/targets';
import type { HttpHandler } from './http/transport';
import { createLog, type Log, requestLogger } from './log';
import { loadSecretKey } from './service/secret-box';
import { openServingServiceStore } from './service/threaded-store';
import { Shutdown } from './shutdown';
import { addressesOf, isLoopback } from './up/addresses';
import { bootstrap } from './up/bootstrap';
import { openDataDir } from './up/data-dir';
import { databaseLocation } from './up/database-location';
import { Door, type Readiness } from './up/door';
import { listenAt, type Listener } from './up/listeners';
import { lockDataDir } from './up/lock';
import type { UpOptions } from './up/options';
import { ServiceMetrics } from './up/service-metrics';
import { startupText } from './up/startup-text';
import { packageVersion } from './version';

const ADMIN_HOST = '127.0.0.1';

/** Runs the service until a signal comes; resolves with the exit code. What can refuse the start (folder, lock, ports) comes before anything that costs or changes something. */
export async function up(options: UpOptions): Promise<number> {
  const { tls, host, databaseUrl, trustedProxies, onRevoke } = options;
  const log = createLog(options.logLevel, [tls.passphrase ?? '']);
  const shutdown = new Shutdown();
  // What was opened, to be closed in the opposite order.
  const closers: (() => Promise<void> | void)[] = [() => shutdown.dispose()];
  try {
    const dir = openDataDir(options.dataDir);
    const lock = lockDataDir(dir.root);
    closers.push(() => lock.release());

    let isDatabaseThere = (): Promise<string | undefined> => Promise.resolve('starting');
    const readiness = { check: () => isDatabaseThere() };
    const consoleDoor = new Door(readiness);
    const servingDoor = new Door(readiness);
    const listener = (door: Door, port: number, at = host): Promise<Listener> => listenAt(at, port, { handler: door.handle, tls: at === host ? tls : {}, transport: options.transport }, closers);
    const consoleListener = await listener(consoleDoor, options.port);
    const servingListener = await listener(servingDoor, options.servingPort ?? (options.port === 0 ? 0 : options.port + 1));
    const addresses = addressesOf(options, { console: consoleListener.port, serving: servingListener.port });
    lock.describe({ pid: process.pid, url: addresses.console });
    warn(log, options);

    const location = databaseLocation(dir.root, databaseUrl);
    let onPush = (): void => {};
    const store = await openServingServiceStore({ location, secretKey: loadSecretKey(dir.root) }, () => onPush());
    closers.push(() => store.close());
    const access = await Access.open({ store, log, onRevoke, version: packageVersion(), ...(trustedProxies.length === 0 ? {} : { trustedProxies }) });
    closers.push(() => access.close());
    onPush = () => access.poke();
    const firstRun = await bootstrap(store, options);

    const targets = new Targets();
    const metrics = new ServiceMetrics(targets);
    const logRequest = requestLogger(log, { logsRequests: options.logsRequests, unloggedPaths: [] });
    const api = new Api({
      routes: apiRoutes(),
      context: { store, access, log, now: Date.now, settings: { isSecure: addresses.console.startsWith('https:'), ownOrigins: [addresses.console], trustedProxies } },
      onEnd: (record) => {
        metrics.onEnd(record);
        logRequest(record);
      },
    });
    isDatabaseThere = () => store.readState().then(() => undefined, () => 'the database does not answer');
    consoleDoor.open(consoleHandler(api));
    const admin = await openAdmin(options, metrics, readiness, closers);
    process.stdout.write(startupText({
      addresses, servingDomain: options.servingDomain, transport: consoleListener.transport.name, admin, dataDir: dir.root, database: describeLocation(location), driver: 'none', isolation: { level: 'L0', reason: '' }, numAdopted: 0, firstRun,
    }));

    await shutdown.requested;
    for (const { transport } of [consoleListener, servingListener]) transport.stopListening();
    const numOpen = consoleDoor.numOpenRequests + servingDoor.numOpenRequests;
    if (numOpen > 0) log.info({ open: numOpen, timeoutMs: options.shutdownTimeoutMs }, 'shutting down once the open requests are answered; again to stop at once');
    await within(options.shutdownTimeoutMs, Promise.all([consoleDoor.drain(), servingDoor.drain()]));
    return 0;
  } finally {
    for (const close of closers.reverse()) await close();
  }
}

/** One origin: the management interface and the pages that use it. */
function consoleHandler(api: Api): HttpHandler {
  return (request, reply) => api.handle(request, reply);
}

async function openAdmin({ adminPort, adminHost = ADMIN_HOST, transport }: UpOptions, metrics: ServiceMetrics, readiness: Readiness, closers: (() => Promise<void> | void)[]): Promise<string | undefined> {
  if (adminPort === undefined) return undefined;
  const door = new Door(readiness);
  door.open((request, reply) => (request.path === '/metrics' ? metrics.handle(request, reply) : Promise.resolve(reply.send(404, {}, ''))));
  const { port } = await listenAt(adminHost, adminPort, { handler: door.handle, tls: {}, transport }, closers);
  return `http://${adminHost.includes(':') ? `[${adminHost}]` : adminHost}:${port}`;
}

function warn(log: Log, { host, tls, publicUrl, servingUrl }: UpOptions): void {
  const isBehindTls = publicUrl?.startsWith('https:') === true && servingUrl?.startsWith('https:') === true;
  if (!isLoopback(host) && tls.certFile === undefined && !isBehindTls) {
    log.warn({ host }, 'passwords, tokens and keys cross the network in the clear: give --ssl-keyfile and --ssl-certfile, or --public-url and --serving-url of a proxy with TLS');
  }
}

/** Resolves with the promise, or once the time is over. */
async function within(timeMs: number, promise: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<void>((resolve) => { timer = setTimeout(resolve, timeMs); });
  await Promise.race([promise, timeout]);
  clearTimeout(timer);
}
