import { execFile, type ExecFileException } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type DriverCapacity, DriverError } from '../driver';

/** Without persistence mode, nvidia-smi first wakes every GPU of the machine. */
const TIMEOUT_MS = 30_000;

/** Access to the machine's GPUs. Tests replace it. */
export interface GpuProgram {
  file: string;
  timeoutMs: number;
  /** Has an entry for each GPU of the NVIDIA driver. */
  gpus: string;
}

const NVIDIA_SMI: GpuProgram = { file: 'nvidia-smi', timeoutMs: TIMEOUT_MS, gpus: '/proc/driver/nvidia/gpus' };

/**
 * Lists the GPUs that the NVIDIA driver reports. Empty without a driver.
 * @throws Error if the program is too slow, or fails although the driver has GPUs. A later call may succeed.
 */
export function listGpus({ file, timeoutMs, gpus }: GpuProgram = NVIDIA_SMI): Promise<DriverCapacity['gpus']> {
  return new Promise((resolve, reject) => {
    execFile(
      file,
      ['--query-gpu=uuid,name,memory.total', '--format=csv,noheader,nounits'],
      { timeout: timeoutMs, killSignal: 'SIGKILL' },
      (error, output, errorOutput) => {
        if (error === null) resolve(parseGpus(output));
        else if (!error.killed && (error.code === 'ENOENT' || !hasEntries(gpus))) resolve([]);
        else reject(new Error(problemOf(error, errorOutput || output, timeoutMs)));
      },
    );
  });
}

function hasEntries(folder: string): boolean {
  return existsSync(folder) && readdirSync(folder).length > 0;
}

function problemOf({ killed, message }: ExecFileException, output: string, timeoutMs: number): string {
  return killed === true
    ? `nvidia-smi did not end within ${timeoutMs / 1000} s`
    : `nvidia-smi failed: ${output.trim().slice(0, 500) || message}`;
}

export function parseGpus(output: string): DriverCapacity['gpus'] {
  return output.split('\n').flatMap((line) => {
    const [uuid, type, memory] = line.split(',').map((field) => field.trim());
    return uuid.startsWith('GPU-') && /^\d+$/.test(memory ?? '') ? [{ uuid, type, memoryMb: Number(memory) }] : [];
  });
}

/** Locations of the driver's files. Tests replace them. */
export interface GpuFiles {
  devices: string;
  /** Contains a folder per GPU, with a file `information` that has its UUID and device minor. */
  gpus: string;
}

const GPU_FILES: GpuFiles = { devices: '/dev', gpus: '/proc/driver/nvidia/gpus' };

/**
 * Returns the device files needed to use these GPUs: the shared ones and those of each GPU. Empty without GPUs.
 * @throws DriverError if the driver does not reveal the device number of a GPU: a guess could give away other GPUs
 */
export function gpuDevices(uuids: readonly string[], { devices, gpus }: GpuFiles = GPU_FILES): string[] {
  if (uuids.length === 0) return [];
  const minors = minorsOf(gpus);
  const own = new Set(uuids.map((uuid) => minors.get(uuid) ?? unknownMinor(uuid, gpus)));
  const names = readdirSync(devices).filter((name) => {
    const [, minor] = /^nvidia(\d+)$/.exec(name) ?? [];
    return minor === undefined ? /^nvidia(ctl|-uvm|-uvm-tools|-modeset|-caps)$/.test(name) : own.has(minor);
  });
  return names.map((name) => join(devices, name));
}

function unknownMinor(uuid: string, folder: string): never {
  throw new DriverError(
    'driver_lost',
    `The device number of GPU ${uuid} is unknown, so the replica would see other GPUs: expected a file ${folder}/*/information with this UUID and a line "Device Minor". Update the NVIDIA driver`,
  );
}

function minorsOf(folder: string): Map<string, string> {
  const minors = new Map<string, string>();
  for (const name of existsSync(folder) ? readdirSync(folder) : []) {
    const text = readFileSync(join(folder, name, 'information'), 'utf8');
    const [, uuid] = /^GPU UUID:\s*(\S+)$/m.exec(text) ?? [];
    const [, minor] = /^Device Minor:\s*(\d+)$/m.exec(text) ?? [];
    if (uuid !== undefined && minor !== undefined) minors.set(uuid, minor);
  }
  return minors;
}
