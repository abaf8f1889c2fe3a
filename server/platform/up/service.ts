import { existsSync } from 'node:fs';
import { join } from 'node:path';
import {
  Access,
  type Closers,
  createLog,
  describeLocation,
  type Log,
  packageVersion,
  redactKeys,
  openTracing,
  requestLogger,
  runAndClose,
  Shutdown,
  type StreamHandler,
  withTimeout,
} from 'capstan/internal';
import { Api } from '../api/api';
import { apiRoutes } from '../api/routes';
import { LogStore } from '../driver/logs/log-store';
import { ProcessDriver } from '../driver/process/process-driver';
import { addressOf } from '../gateway/address';
import { Gateway } from '../gateway/gateway';
import { Targets } from '../gateway/targets';
import { LOOP_OFFSET_MS, loopClock, SYSTEM_CLOCK } from '../control/clock';
import { Controller } from '../control/controller';
import { stopStrays } from '../control/strays';
import { CanaryWatcher } from '../canary/canary-watcher';
import { DataMeasurer } from '../deployments/data-measurer';
import { HubPuller } from '../deployments/hub-puller';
import { HomeSnapshots } from '../deployments/home-snapshots';
import { PrefixCaches } from '../deployments/prefix-caches';
import type { Machine } from '../deployments/machine';
import { loadSecretKey, refuseNewKey, removeSecretKey, secretKeyFile } from '../accounts/secret-box';
import { openServingServiceStore } from '../store/threaded-store';
import { StorageService } from '../storage/storage-service';
import { MoneyMeter } from '../money/money-meter';
import { UsageRecorder } from '../usage/usage-recorder';
import { refuseHost } from '../api/console-host';
import { addressesOf, apiUrl, deploymentUrl, isLoopback, sessionGuardOf } from './addresses';
import { bootstrap } from './bootstrap';
import { consoleHandler } from './console-handler';
import { openDataDir, openDataRoots } from './data-dir';
import { databaseLocation } from './database-location';
import { hiddenPaths } from './hidden-paths';
import { RequestGate, type Readiness } from './request-gate';
import { loadGatewayId } from './gateway-id';
import { searchGpus } from './gpu-search';
import { LeaseKeeper } from './lease-keeper';
import { listenAt } from './listeners';
import { lockDataDir } from './lock';
import { leaseForMigration } from './migration-lease';
import type { UpOptions } from './options';
import { refusePlugAndPlay } from './plug-and-play';
import { ServiceMetrics } from './service-metrics';
import { resolveByDns, resolveEndpoint } from '../outbound/endpoint';
import { startupText } from './startup-text';
import { ProviderSignIn } from '../sign-in/provider-sign-in';
import { WebhookSender } from '../webhooks/webhook-sender';

const ADMIN_HOST = '127.0.0.1';

/**
 * Runs the service until a signal arrives. Resolves with the exit code.
 * Checks that can refuse the start (folder, lock, ports) come before steps that are slow or change something.
 */
export async function up(options: UpOptions): Promise<number> {
  refusePlugAndPlay(process.versions);
  const log = createLog(options.logLevel, [options.tls.passphrase ?? '']);
  return runAndClose(
    (closers) => runService(options, log, closers),
    ({ message }) => log.error({ reason: message }, 'cannot end a part of the service cleanly'),
  );
}

async function runService(options: UpOptions, log: Log, closers: Closers): Promise<number> {
  const { databaseUrl, trustedProxies, onRevoke, servingDomain, consoleHost, logsRequests } = options;
  const shutdown = new Shutdown();
  closers.push(() => shutdown.dispose());
  const dir = openDataDir(options.dataDir);
  const dataRoots = openDataRoots(options.dataRoots, dir);
  const lock = lockDataDir(dir.root);
  closers.push(() => lock.release());

  let checkDatabase = (): Promise<string | undefined> => Promise.resolve(undefined);
  const readiness: Readiness = { check: () => checkDatabase() };
  const consoleGate = new RequestGate(readiness, isFollowing);
  const servingGate = new RequestGate(
    readiness,
    undefined,
    (request) => addressOf(request, servingDomain) !== undefined,
  );
  const adminGate = new RequestGate(readiness);
  const consoleListener = await listenAt(
    options.host,
    options.port,
    { ...options, handler: consoleGate.handle, streamsBodies: false },
    closers,
    '--port',
  );
  const servingListener = await listenAt(
    options.host,
    options.servingPort ?? nextPort(options.port),
    { ...options, handler: servingGate.handle, streamsBodies: true },
    closers,
    '--serving-port',
  );
  const addresses = addressesOf(options, { console: consoleListener.port, serving: servingListener.port });
  const isSecure = addresses.console.startsWith('https:');
  const admin = await openAdmin(options, adminGate, closers);
  lock.describe({ pid: process.pid, url: addresses.console });
  warn(log, options);

  const logs = new LogStore({ folder: dir.logs, redact: redactKeys });
  closers.push(() => logs.close());
  const hidden = hiddenPaths(options, dataRoots);
  const driver = await ProcessDriver.open({
    dataDir: dir.root,
    logs,
    hiddenPaths: hidden,
    replicaDiskBytes: options.replicaDiskBytes,
  });
  closers.push(() => driver.detach());
  const machine: Machine = {
    driver: driver.name,
    isolation: driver.isolation,
    capacity: await driver.capacity(),
    dataRoots,
    allowsUnisolated: options.allowUnisolated,
  };

  const location = databaseLocation(dir.root, databaseUrl);
  let onPush = (): void => {};
  const node = loadGatewayId(dir.root);
  const leaseOptions = { holder: node, clock: SYSTEM_CLOCK, log };
  let isStandby = false;
  const onStandby = (): void => {
    if (isStandby) return;
    isStandby = true;
    for (const gate of [consoleGate, servingGate, adminGate]) gate.standBy();
    standBy(driver, log);
  };
  const isAlone = location.kind === 'file';
  const endMigration = isAlone
    ? () => Promise.resolve()
    : await leaseForMigration({
        ...leaseOptions,
        location,
        loopNow: loopClock(LOOP_OFFSET_MS),
        signal: shutdown.signal,
        onStandby,
      });
  closers.push(endMigration);
  if (shutdown.signal.aborted) return 0;
  const isNewKey = !existsSync(secretKeyFile(dir.root));
  const secretKey = loadSecretKey(dir.root);
  const store = await openServingServiceStore(
    { location, node, secretKey, version: packageVersion(), machine, loopOffsetMs: LOOP_OFFSET_MS },
    () => onPush(),
  ).catch((error: unknown) => {
    // The next start may find a database that needs another key.
    if (isNewKey) removeSecretKey(dir.root);
    throw error;
  });
  closers.push(() => store.close());
  if (isNewKey && (await store.readOwnerIds()).length > 0) refuseNewKey(dir.root);
  checkDatabase = () =>
    store.readState().then(
      () => undefined,
      () => 'the database does not respond',
    );
  await endMigration();
  const lease = new LeaseKeeper({ ...leaseOptions, store, isAlone });
  closers.push(() => lease.close({ releases: options.stopsDeployments && shutdown.signal.aborted }));
  const epoch = await lease.acquire(shutdown.signal, onStandby);
  if (epoch === undefined) return 0;
  let hasLostLease = false;
  const leaseLost = lease.lost.then(() => {
    hasLostLease = true;
  });

  const access = await Access.open({
    store,
    log,
    onRevoke,
    version: packageVersion(),
    gatewayId: node,
    ...(trustedProxies.length === 0 ? {} : { trustedProxies }),
  });
  closers.push(() => access.close());
  onPush = () => access.wake();
  const firstRun = await bootstrap(store, options);
  const storage = await StorageService.open({
    dataDir: dir.root,
    batches: options.batches,
    storedResponses: options.storedResponses,
    trustedProxies,
    access,
    readOwners: () => store.readOwnerIds(),
    log,
  });
  closers.push(() => storage.close());

  const targets = new Targets();
  const controller = new Controller({
    store,
    epoch,
    onLeaseLost: () => lease.lose(),
    driver,
    targets,
    snapshots: new HomeSnapshots(join(dir.root, 'homes'), {
      maxHoleBytes: options.replicaDiskBytes,
      hiddenPaths: [dir.root, ...hidden],
    }),
    prefixCaches: new PrefixCaches(join(dir.root, 'prefix-caches')),
    dataRoots,
    allowsUnisolated: options.allowUnisolated,
    logs,
    log,
  });
  const stopsReplicas = (): boolean => hasLostLease || (options.stopsDeployments && shutdown.signal.aborted);
  closers.push(() => controller.close({ stopsReplicas: stopsReplicas() }));
  const measurer = new DataMeasurer({ store, dataRoots, log });
  closers.push(() => measurer.close());
  const puller = new HubPuller({
    store,
    dataRoots,
    node,
    log,
    onEnd: () => {
      measurer.notify();
      void controller.capacityFreed();
    },
  });
  closers.push(() => puller.close());
  // A new version may need a model from the hub.
  controller.onChange(() => puller.notify());
  const metrics = new ServiceMetrics(targets);
  const usage = new UsageRecorder({ store, targets, driver, log });
  closers.push(() => usage.close());
  const canaries = new CanaryWatcher({ store, targets, reconcile: (id) => controller.reconcile(id), log });
  closers.push(() => canaries.close());
  const tracing = openTracing(options.traces, log);
  closers.push(async () => tracing?.close());
  const money = await MoneyMeter.open({ store, log });
  closers.push(() => money.close());
  const gateway = new Gateway({
    tracing,
    targets,
    control: metrics.countingControl(controller),
    access: metrics.countingAccess(access),
    storage,
    log,
    billing: money,
    trustedProxies,
    logsRequests,
    allowsPrivateUpstreams: options.allowPrivateUpstreams,
    scheme: addresses.serving.startsWith('https:') ? 'https' : 'http',
    ...(servingDomain === undefined ? {} : { domain: servingDomain }),
    onEnd: (record) => {
      usage.record(record);
      canaries.record(record);
      metrics.onForwarded(record);
    },
  });
  metrics.watch(gateway);
  closers.push(() => gateway.close());
  const webhooks = new WebhookSender({ store, log, allowsPrivate: options.allowPrivateWebhooks });
  closers.push(() => webhooks.close());
  const providers = new ProviderSignIn({ store, log, origin: addresses.console, now: Date.now });
  closers.push(() => providers.close());
  const logRequest = requestLogger(log, { logsRequests, unloggedPaths: [] });
  const api = new Api({
    routes: apiRoutes(),
    context: {
      store,
      access,
      controller,
      logs,
      measurer,
      puller,
      money,
      dataRoots,
      webhooks,
      checkUpstream: async (url) => {
        await resolveEndpoint(url, {
          resolve: resolveByDns,
          allowsPrivate: options.allowPrivateUpstreams,
          param: 'upstream.url',
          flag: '--allow-private-upstreams',
        });
      },
      providers,
      serving: {
        targets,
        gateway,
        urlOf: (slug) => deploymentUrl(addresses, servingDomain, slug),
        apiUrl: apiUrl(addresses, servingDomain),
      },
      log,
      now: Date.now,
      settings: {
        isSecure,
        ownOrigins: [addresses.console],
        trustedProxies,
        sessionGuard: sessionGuardOf(options, isSecure, driver.isolation.level),
        ...(consoleHost === undefined ? {} : { consoleHost }),
      },
    },
    onEnd: (record) => {
      metrics.onEnd(record);
      logRequest(record);
    },
  });
  await controller.start();
  closers.push(searchGpus({ driver, store, controller, log, clock: SYSTEM_CLOCK }, machine.capacity));
  usage.start();
  storage.start(gateway, targets);
  money.start();
  webhooks.start();
  providers.watch();
  measurer.notify();
  void puller.start();
  consoleGate.open(consoleHandler(api, { isSecure, origin: addresses.console, consoleHost }));
  servingGate.open(consoleHost === undefined ? gateway.handle : refuseHost(consoleHost, gateway.handle));
  adminGate.open(adminHandler(metrics));
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

  await Promise.race([shutdown.requested, leaseLost]);
  if (hasLostLease) {
    log.error({}, 'another service controls the deployments of this database now: this one ends with its replicas');
    return 1;
  }
  for (const { transport } of [consoleListener, servingListener]) transport.stopListening();
  await storage.close();
  const numOpen = consoleGate.numOpenRequests + gateway.numOpenRequests;
  if (numOpen > 0)
    log.info(
      { open: numOpen, timeoutMs: options.shutdownTimeoutMs },
      'shutting down after the open requests end; send the signal again to exit at once',
    );
  await withTimeout(options.shutdownTimeoutMs, Promise.all([consoleGate.drain(), gateway.drain()]));
  return 0;
}

/** Whether a request follows logs or events, so that its response has no end. */
function isFollowing({ method, path }: { method: string; path: string }): boolean {
  return method === 'GET' && /\/(follow|stream)$/.test(path);
}

function nextPort(port: number): number {
  return port === 0 ? 0 : port + 1;
}

/** Says so, and stops replicas of an earlier time as the holder: the other service has started them again. */
function standBy(driver: ProcessDriver, log: Log): void {
  log.info({}, 'standby: another service controls the deployments of this database');
  void stopStrays(driver, [], (error, replicaId) =>
    log.warn({ replicaId, reason: (error as Error).message }, 'cannot stop a replica of an earlier service'),
  );
}

function adminHandler(metrics: ServiceMetrics): StreamHandler {
  return (request, reply) =>
    request.path === '/metrics'
      ? metrics.handle(request, reply)
      : Promise.resolve(reply.send(404, {}, 'expected /healthz, /readyz or /metrics\n'));
}

async function openAdmin(
  { adminPort, adminHost = ADMIN_HOST, transport, keepAliveTimeoutMs }: UpOptions,
  gate: RequestGate,
  closers: Closers,
): Promise<string | undefined> {
  if (adminPort === undefined) return undefined;
  const { port } = await listenAt(
    adminHost,
    adminPort,
    { handler: gate.handle, tls: {}, transport, keepAliveTimeoutMs, streamsBodies: false },
    closers,
    '--admin-port',
  );
  return `http://${adminHost.includes(':') ? `[${adminHost}]` : adminHost}:${port}`;
}

function warn(log: Log, { host, tls, publicUrl, servingUrl }: UpOptions): void {
  const isBehindTls = publicUrl?.startsWith('https:') === true && servingUrl?.startsWith('https:') === true;
  if (!isLoopback(host) && tls.certFile === undefined && !isBehindTls) {
    log.warn(
      { host },
      'passwords, tokens and keys cross the network unencrypted: set --ssl-keyfile and --ssl-certfile, or --public-url and --serving-url of a proxy with TLS',
    );
  }
}
