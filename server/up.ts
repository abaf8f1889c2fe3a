import { join } from 'node:path';
import { Access, describeLocation, redactKeys } from './access';
import { Api } from './api/api';
import { apiRoutes } from './api/routes';
import { LogStore } from './driver/logs/log-store';
import { ProcessDriver } from './driver/process/process-driver';
import { Gateway } from './gateway/gateway';
import { Targets } from './gateway/targets';
import { createLog, type Log, requestLogger } from './log';
import { Controller } from './service/controller';
import { DataMeasurer } from './service/data-measurer';
import { HomeSnapshots } from './service/home-snapshots';
import type { Machine } from './service/machine';
import { loadSecretKey } from './service/secret-box';
import { openServingServiceStore } from './service/threaded-store';
import { UsageRecorder } from './service/usage-recorder';
import { Shutdown } from './shutdown';
import { addressesOf, deploymentUrl, isLoopback } from './up/addresses';
import { bootstrap } from './up/bootstrap';
import { consoleHandler } from './up/console-handler';
import { openDataDir, openDataRoots } from './up/data-dir';
import { databaseLocation } from './up/database-location';
import { Door, type Readiness } from './up/door';
import { loadGatewayId } from './up/gateway-id';
import { type Closers, listenAt } from './up/listeners';
import { lockDataDir } from './up/lock';
import type { UpOptions } from './up/options';
import { ServiceMetrics } from './up/service-metrics';
import { startupText } from './up/startup-text';
import { packageVersion } from './version';
import { WebhookSender } from './webhooks/webhook-sender';
import { within } from './within';

const ADMIN_HOST = '127.0.0.1';

/** Runs the service until a signal comes; resolves with the exit code. What can refuse the start (folder, lock, ports) comes before what costs or changes something. */
export async function up(options: UpOptions): Promise<number> {
  const { tls, databaseUrl, trustedProxies, onRevoke, servingDomain, logsRequests } = options;
  const log = createLog(options.logLevel, [tls.passphrase ?? '']);
  const shutdown = new Shutdown();
  // What was opened, to be closed in the opposite order.
  const closers: Closers = [() => shutdown.dispose()];
  try {
    const dir = openDataDir(options.dataDir);
    const dataRoots = openDataRoots(options.dataRoots, dir);
    const lock = lockDataDir(dir.root);
    closers.push(() => lock.release());

    let checkDatabase = (): Promise<string | undefined> => Promise.resolve(undefined);
    const readiness: Readiness = { check: () => checkDatabase() };
    const consoleDoor = new Door(readiness, isFollowing);
    const servingDoor = new Door(readiness);
    const consoleListener = await listenAt(
      options.host,
      options.port,
      { ...options, handler: consoleDoor.handle, streamsBodies: false },
      closers,
    );
    const servingListener = await listenAt(
      options.host,
      options.servingPort ?? nextPort(options.port),
      { ...options, handler: servingDoor.handle, streamsBodies: true },
      closers,
    );
    const addresses = addressesOf(options, { console: consoleListener.port, serving: servingListener.port });
    lock.describe({ pid: process.pid, url: addresses.console });
    warn(log, options);

    const logs = new LogStore({ folder: dir.logs, redact: redactKeys });
    closers.push(() => logs.close());
    const driver = await ProcessDriver.open({ dataDir: dir.root, logs, hides: [] });
    const machine: Machine = {
      driver: driver.name,
      isolation: driver.isolation,
      capacity: await driver.capacity(),
      dataRoots,
      allowsUnisolated: options.allowUnisolated,
    };

    const location = databaseLocation(dir.root, databaseUrl);
    let onPush = (): void => {};
    const store = await openServingServiceStore(
      { location, secretKey: loadSecretKey(dir.root), version: packageVersion(), machine },
      () => onPush(),
    );
    closers.push(() => store.close());
    checkDatabase = () =>
      store.readState().then(
        () => undefined,
        () => 'the database does not answer',
      );
    const access = await Access.open({
      store,
      log,
      onRevoke,
      version: packageVersion(),
      gatewayId: loadGatewayId(dir.root),
      ...(trustedProxies.length === 0 ? {} : { trustedProxies }),
    });
    closers.push(() => access.close());
    onPush = () => access.poke();
    const firstRun = await bootstrap(store, options);

    const targets = new Targets();
    const controller = new Controller({
      store,
      driver,
      targets,
      snapshots: new HomeSnapshots(join(dir.root, 'homes')),
      dataRoots,
      allowsUnisolated: options.allowUnisolated,
      logs,
      log,
    });
    closers.push(() => controller.close({ stopsReplicas: options.stopsDeployments && shutdown.signal.aborted }));
    const measurer = new DataMeasurer({ store, dataRoots, log });
    closers.push(() => measurer.close());
    const metrics = new ServiceMetrics(targets);
    const usage = new UsageRecorder({ store, targets, driver, log });
    closers.push(() => usage.close());
    const gateway = new Gateway({
      targets,
      control: metrics.countingControl(controller),
      access: metrics.countingAccess(access),
      log,
      trustedProxies,
      logsRequests,
      scheme: addresses.serving.startsWith('https:') ? 'https' : 'http',
      ...(servingDomain === undefined ? {} : { domain: servingDomain }),
      onEnd: (record) => {
        usage.record(record);
        metrics.onForwarded(record);
      },
    });
    metrics.watch(gateway);
    closers.push(() => gateway.close());
    const webhooks = new WebhookSender({ store, log, allowsPrivate: options.allowPrivateWebhooks });
    closers.push(() => webhooks.close());
    const logRequest = requestLogger(log, { logsRequests, unloggedPaths: [] });
    const api = new Api({
      routes: apiRoutes(),
      context: {
        store,
        access,
        controller,
        logs,
        measurer,
        webhooks,
        serving: { targets, gateway, urlOf: (slug) => deploymentUrl(addresses, servingDomain, slug) },
        log,
        now: Date.now,
        settings: { isSecure: addresses.console.startsWith('https:'), ownOrigins: [addresses.console], trustedProxies },
      },
      onEnd: (record) => {
        metrics.onEnd(record);
        logRequest(record);
      },
    });
    await controller.start();
    usage.start();
    webhooks.start();
    measurer.poke();
    consoleDoor.open(consoleHandler(api, { isSecure: addresses.console.startsWith('https:') }));
    servingDoor.open(gateway.handle);
    const admin = await openAdmin(options, metrics, readiness, closers);
    process.stdout.write(
      startupText({
        addresses,
        servingDomain,
        transport: consoleListener.transport.name,
        admin,
        dataDir: dir.root,
        database: describeLocation(location),
        driver: driver.name,
        isolation: driver.isolation,
        targets,
        firstRun,
      }),
    );

    await shutdown.requested;
    for (const { transport } of [consoleListener, servingListener]) transport.stopListening();
    const numOpen = consoleDoor.numOpenRequests + gateway.numOpenRequests;
    if (numOpen > 0)
      log.info(
        { open: numOpen, timeoutMs: options.shutdownTimeoutMs },
        'shutting down once the open requests are answered; again to stop at once',
      );
    await within(options.shutdownTimeoutMs, Promise.all([consoleDoor.drain(), gateway.drain()]));
    return 0;
  } finally {
    for (const close of closers.reverse()) await close();
  }
}

/** Of logs and events. */
function isFollowing({ method, path }: { method: string; path: string }): boolean {
  return method === 'GET' && /\/(follow|stream)$/.test(path);
}

function nextPort(port: number): number {
  return port === 0 ? 0 : port + 1;
}

async function openAdmin(
  { adminPort, adminHost = ADMIN_HOST, transport }: UpOptions,
  metrics: ServiceMetrics,
  readiness: Readiness,
  closers: Closers,
): Promise<string | undefined> {
  if (adminPort === undefined) return undefined;
  const door = new Door(readiness);
  door.open((request, reply) =>
    request.path === '/metrics'
      ? metrics.handle(request, reply)
      : Promise.resolve(reply.send(404, {}, 'expected /healthz, /readyz or /metrics\n')),
  );
  const { port } = await listenAt(
    adminHost,
    adminPort,
    { handler: door.handle, tls: {}, transport, streamsBodies: false },
    closers,
  );
  return `http://${adminHost.includes(':') ? `[${adminHost}]` : adminHost}:${port}`;
}

function warn(log: Log, { host, tls, publicUrl, servingUrl }: UpOptions): void {
  const isBehindTls = publicUrl?.startsWith('https:') === true && servingUrl?.startsWith('https:') === true;
  if (!isLoopback(host) && tls.certFile === undefined && !isBehindTls) {
    log.warn(
      { host },
      'passwords, tokens and keys cross the network in the clear: give --ssl-keyfile and --ssl-certfile, or --public-url and --serving-url of a proxy with TLS',
    );
  }
}
