import { counted } from 'capstan/internal/cli';
import type { Compute, RuntimeOptions } from '../api/objects';

/** Characters that control a terminal: control characters except the tab, and marks that change the text direction. */
const CONTROLS = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Escapes terminal control characters and line breaks in untrusted text, such as log lines and names. */
export function plain(text: string): string {
  return text.replace(CONTROLS, (character) => `\\x${character.codePointAt(0)!.toString(16).padStart(2, '0')}`);
}

/** Returns what a version or container runs: its start script, or the command of the built-in runtime. */
export function runsText(startCommand: string | null, { model, task, quantization }: RuntimeOptions): string {
  if (startCommand !== null) return plain(startCommand);
  return [
    `capstan serve ${plain(model ?? 'demo')}`,
    ...(task === null ? [] : [`--task ${task}`]),
    ...(quantization === null ? [] : [`--quantization ${quantization}`]),
  ].join(' ');
}

/** Returns, for example, `2030-01-31 12:00Z`, or a dash for null. */
export function formatTime(time: string | null): string {
  return time === null ? '-' : `${time.slice(0, 16).replace('T', ' ')}Z`;
}

export function formatMemory(mb: number): string {
  return mb >= 1024 ? `${Number((mb / 1024).toFixed(1))} GiB` : `${mb} MiB`;
}

/** Returns, for example, `2 cores, 4 GiB, 1 GPU (NVIDIA H200)`. */
export function describeCompute({
  cpu_millis: millis,
  memory_mb: mb,
  gpu_count: gpus,
  gpu_type: type,
}: Compute): string {
  const parts = [counted(millis / 1000, 'core'), formatMemory(mb)];
  if (gpus > 0) parts.push(`${counted(gpus, 'GPU')}${type === null ? '' : ` (${plain(type)})`}`);
  return parts.join(', ');
}

/** Returns one aligned `name  value` line per field. Leaves out undefined values. */
export function renderFields(fields: readonly (readonly [string, string | undefined])[]): string {
  const shown = fields.filter((field): field is [string, string] => field[1] !== undefined);
  const width = Math.max(...shown.map(([name]) => name.length));
  return shown.map(([name, value]) => `${name.padEnd(width)}  ${value}\n`).join('');
}
