// Runs the checks through every reverse proxy. run.sh installs the proxies and calls this. Exits 1 if a check fails.
import { join } from 'node:path';
import { createKey, killAll, prepare, startServer } from '../fakes/server-process';
import { temporaryFolder } from '../fakes/temporary-folder';
import { CHECKS, type Subject } from './checks';
import { killProxies, PROXIES, startProxy, versionOf } from './proxies';

async function runChecks(subject: Subject): Promise<number> {
  let failed = 0;
  for (const [name, check] of Object.entries(CHECKS)) {
    const begin = performance.now();
    const error: Error | undefined = await check(subject).then(
      () => undefined,
      (thrown: Error) => thrown,
    );
    if (error !== undefined) failed++;
    const seconds = ((performance.now() - begin) / 1000).toFixed(1);
    console.log(`  ${error === undefined ? 'passes' : 'FAILS '}  ${seconds.padStart(5)} s  ${name}`);
    if (error !== undefined) console.log(error.stack);
  }
  return failed;
}

void (async () => {
  prepare();
  const keysDb = join(temporaryFolder('proxies'), 'keys.db');
  const key = createKey(keysDb, '--name', 'anywhere');
  const addressKey = createKey(keysDb, '--name', 'one-address', '--allow-from', '127.0.0.2/32');
  const server = await startServer(
    [
      ...['demo', '--http-transport', 'node', '--max-num-seqs', '1', '--sse-ping-interval-s', '0.1'],
      ...['--access-control', '--keys-db', keysDb, '--trusted-proxy', '127.0.0.1', '--log-level', 'error'],
    ],
    {},
  );
  let failed = 0;
  for (const kind of PROXIES) {
    console.log(`${kind.name} ${versionOf(kind)}`);
    const proxy = await startProxy(kind, server.url);
    const { forwardsAddress } = kind;
    failed += await runChecks({ url: proxy.url, serverUrl: server.url, key, addressKey, forwardsAddress });
    await proxy.stop();
  }
  server.process.kill('SIGTERM');
  await server.exited;
  const { stderr } = server.output();
  if (stderr !== '') console.log(`expected no error in the server's log, got: ${stderr.slice(0, 1000)}`);
  process.exitCode = failed === 0 && stderr === '' ? 0 : 1;
})().finally(() => {
  killProxies();
  killAll();
});
