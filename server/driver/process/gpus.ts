import { execFile } from 'node:child_process';
import { readdirSync } from 'node:fs';
import type { DriverCapacity } from '../driver';

const TIMEOUT_MS = 10_000;

/** As the driver of this machine lists them; none where there is none. */
export function listGpus(): Promise<DriverCapacity['gpus']> {
  return new Promise((resolve) => {
    execFile('nvidia-smi', ['--query-gpu=uuid,name,memory.total', '--format=csv,noheader,nounits'], { timeout: TIMEOUT_MS }, (error, output) => resolve(error === null ? parseGpus(output) : []));
  });
}

export function parseGpus(output: string): DriverCapacity['gpus'] {
  return output.split('\n').flatMap((line) => {
    const [uuid, type, memory] = line.split(',').map((field) => field.trim());
    return uuid.startsWith('GPU-') && /^\d+$/.test(memory ?? '') ? [{ uuid, type, memoryMb: Number(memory) }] : [];
  });
}

/** What a process needs of /dev to use them. */
export function gpuDevices(): string[] {
  return readdirSync('/dev').filter((name) => /^nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset|-caps)$/.test(name)).map((name) => `/dev/${name}`);
}
