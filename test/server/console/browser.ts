import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ConsoleFiles } from '../../../server/console-files';
import { NodeTransport } from '../../../server/http/node';
import { FakeService } from './fake-service';

const root = join(__dirname, '../../..');

/** A Chromium: the one of CHROMIUM_PATH, else one in PATH. */
export function findBrowser(): string | undefined {
  const given = process.env.CHROMIUM_PATH;
  if (given !== undefined && given !== '') return given;
  for (const name of ['chromium', 'chromium-browser', 'google-chrome']) {
    const { status, stdout } = spawnSync('which', [name], { encoding: 'utf8' });
    if (status === 0) return stdout.trim();
  }
  return undefined;
}

/** The console as it is built, in front of a service in memory. */
export async function startConsole(): Promise<{
  service: FakeService;
  url: string;
  folder: string;
  close: () => Promise<void>;
}> {
  const folder = mkdtempSync(join(tmpdir(), 'capstan-console-'));
  execFileSync(
    process.execPath,
    [
      join(root, 'node_modules/vite/bin/vite.js'),
      'build',
      join(root, 'server/console'),
      '--outDir',
      folder,
      '--emptyOutDir',
    ],
    { env: { ...process.env, NODE_ENV: 'production' } },
  );
  const files = new ConsoleFiles(folder, { isSecure: false });
  const service = new FakeService();
  const transport = new NodeTransport({
    maxBodyBytes: 1 << 20,
    bodyTimeoutMs: 10_000,
    handler: (request, reply) =>
      request.path.startsWith('/api/') ? service.handle(request, reply) : files.handle(request, reply),
  });
  const port = await transport.listen('127.0.0.1', 0);
  return { service, folder, url: `http://127.0.0.1:${port}`, close: () => transport.close() };
}
