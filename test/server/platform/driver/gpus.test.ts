/**
 * GPU leases inside namespaces: a replica has the device files of its GPUs only. Copies of /dev/zero stand in for them.
 */
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { LogStore } from '../../../../server/platform/driver/logs/log-store';
import { gpuDevices, type GpuFiles, parseGpus } from '../../../../server/platform/driver/process/gpus';
import { ProcessDriver } from '../../../../server/platform/driver/process/process-driver';
import { Listener, newSpec } from './conformance';

const SHARED = ['nvidia-uvm', 'nvidia-uvm-tools', 'nvidiactl'];
let root: string;
let files: GpuFiles;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'capstan-gpus-'));
  chmodSync(root, 0o755);
  files = { devices: join(root, 'dev'), gpus: join(root, 'gpus') };
  mkdirSync(files.devices);
  for (const name of [...SHARED, 'nvidia0', 'nvidia1', 'null']) makeNode(join(files.devices, name));
  for (const [bus, uuid, minor] of [
    ['0000:01:00.0', 'GPU-a', 1],
    ['0000:02:00.0', 'GPU-b', 0],
  ]) {
    mkdirSync(join(files.gpus, String(bus)), { recursive: true });
    writeFileSync(
      join(files.gpus, String(bus), 'information'),
      `Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\nGPU UUID: \t ${uuid}\nDMA Size: \t 52 bits\nDevice Minor: \t ${minor}\nGPU Excluded:\t No\n`,
    );
  }
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

/** Creates a device like /dev/zero, or a file of zeros if this user may not create devices. */
function makeNode(path: string): void {
  try {
    execFileSync('mknod', [path, 'c', '1', '5'], { stdio: 'ignore' });
    execFileSync('head', ['-c', '1', path], { stdio: 'ignore' });
  } catch {
    rmSync(path, { force: true });
    writeFileSync(path, Buffer.alloc(4096));
  }
  chmodSync(path, 0o666);
}

const named = (names: readonly string[]): string[] => names.map((name) => join(files.devices, name)).sort();

test('a lease gives the device files of its GPUs and the shared ones', () => {
  expect(gpuDevices(['GPU-a'], files).sort()).toEqual(named([...SHARED, 'nvidia1']));
  expect(gpuDevices(['GPU-b', 'GPU-a'], files).sort()).toEqual(named([...SHARED, 'nvidia0', 'nvidia1']));
  expect(gpuDevices([], files)).toEqual([]);
});

test('refuses a GPU whose device file is unknown, instead of giving away the others', () => {
  const refusal = expect.objectContaining({ name: 'DriverError', message: expect.stringContaining('is unknown') });
  expect(() => gpuDevices(['GPU-a', 'GPU-c'], files)).toThrow(refusal as Error);
  rmSync(files.gpus, { recursive: true });
  expect(() => gpuDevices(['GPU-a'], files)).toThrow(refusal as Error);
});

test('parses the output of nvidia-smi and ignores other lines', () => {
  expect(parseGpus('GPU-a, NVIDIA H200, 143771\nNo devices were found\n\n')).toEqual([
    { uuid: 'GPU-a', type: 'NVIDIA H200', memoryMb: 143_771 },
  ]);
});

const hasNamespaces = process.env.CAPSTAN_TEST_LEVELS?.split(',').includes('L2') !== false;
(hasNamespaces ? test : test.skip)(
  'a replica in namespaces has the device files of its lease, and none without a lease',
  async () => {
    const logs = new LogStore({ folder: join(root, 'logs'), redact: (text) => text });
    const driver = await ProcessDriver.open({ dataDir: join(root, 'data'), logs, level: 'L2', gpuFiles: files });
    const listener = new Listener(driver);
    const startCommand = `cd ${files.devices} 2>/dev/null && for name in *; do echo "$name $(head -c 4 "$name" | wc -c)"; done; echo "$CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES"`;
    const outputOf = async (gpuUuids: string[]): Promise<string[]> => {
      const spec = newSpec({ startCommand, gpuUuids });
      await driver.ensure(spec);
      await listener.next(spec, 'exited');
      return (await logs.read(spec.logId, { after: 0, limit: 100, stream: 'stdout' })).lines.map(({ text }) => text);
    };
    expect(await outputOf(['GPU-a'])).toEqual([
      'nvidia-uvm 4',
      'nvidia-uvm-tools 4',
      'nvidia1 4',
      'nvidiactl 4',
      'GPU-a GPU-a',
    ]);
    expect(await outputOf([])).toEqual([' void']);
    await driver.detach();
    await logs.close();
  },
);
