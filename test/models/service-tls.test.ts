/** `capstan up` with a self-signed certificate: console, management API, deployments and command line over TLS. */
import { readFileSync } from 'node:fs';
import { get, request } from 'node:https';
import type { IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { killAll } from '../fakes/server-process';
import { ADMIN, capstan, makeDataDir, type RunningService, startService } from './service-process';

const TLS = join(__dirname, '../fakes/tls');
const file = (name: string): string => join(TLS, name);
const ca = readFileSync(file('cert.pem'));
const { dataDir, passwordFile, remove } = makeDataDir();
let service: RunningService;
let env: NodeJS.ProcessEnv;

beforeAll(async () => {
  service = await startService(dataDir, [
    '--ssl-keyfile',
    file('key.pem'),
    '--ssl-certfile',
    file('cert.pem'),
    '--stop-deployments',
    '--bootstrap-email',
    ADMIN.email,
    '--bootstrap-password-file',
    passwordFile,
  ]);
  const { stdout } = await capstan([
    'tokens',
    'create',
    '--data-dir',
    dataDir,
    '--email',
    ADMIN.email,
    '--name',
    'cli',
  ]);
  env = { CAPSTAN_URL: service.url, CAPSTAN_TOKEN: stdout.trim(), NODE_EXTRA_CA_CERTS: file('cert.pem') };
});
afterAll(async () => {
  service.process.kill('SIGTERM');
  await service.exited;
  killAll();
  remove();
});

const responseOf = (url: string): Promise<IncomingMessage> =>
  new Promise((resolve, reject) => {
    get(url, { ca, agent: false }, resolve).on('error', reject);
  });

test('both ports use the certificate and refuse plain HTTP', async () => {
  expect([service.url, service.servingUrl]).toEqual([
    expect.stringMatching(/^https:/),
    expect.stringMatching(/^https:/),
  ]);
  for (const url of [service.url, service.servingUrl]) {
    expect(JSON.parse(await text(await responseOf(`${url}/readyz`)))).toEqual({ status: 'ready' });
    await expect(fetch(`${url.replace('https:', 'http:')}/readyz`)).rejects.toThrow();
  }
});

test('the session cookie has the __Host- prefix', async () => {
  const body = JSON.stringify(ADMIN);
  const { statusCode, headers } = await new Promise<IncomingMessage>((resolve, reject) => {
    request(
      `${service.url}/api/v1/auth/login`,
      {
        method: 'POST',
        ca,
        agent: false,
        headers: { 'Content-Type': 'application/json', 'Content-Length': body.length, Origin: service.url },
      },
      resolve,
    )
      .on('error', reject)
      .end(body);
  });
  expect([statusCode, headers['set-cookie']]).toEqual([204, [expect.stringMatching(/^__Host-.*; Secure$/)]]);
  expect(headers['strict-transport-security']).toMatch(/max-age=\d+/);
});

test('the command line requires the certificate, and names the variable for it', async () => {
  const { code, stderr } = await capstan(['deployments', 'list'], { ...env, NODE_EXTRA_CA_CERTS: '' });
  expect([code, stderr]).toEqual([1, expect.stringContaining('NODE_EXTRA_CA_CERTS')]);
  expect((await capstan(['deploy', 'chat', '--cpus', '0.5', '--memory', '1G', '--wait'], env)).code).toBe(0);
  const { url } = JSON.parse((await capstan(['deployments', 'get', 'chat', '--json'], env)).stdout) as { url: string };
  expect(url).toMatch(`${service.servingUrl}/d/`);
  const response = await responseOf(`${url}/v1/models`);
  expect([response.statusCode, (JSON.parse(await text(response)) as { data: { id: string }[] }).data[0].id]).toEqual([
    200,
    'demo',
  ]);
});
