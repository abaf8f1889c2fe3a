import type { DataPull } from '../api/objects';
import { formatMemory, plain } from './text';

/** Returns the state of a pull in words, such as `downloading 43 % of 2.8 GiB, 85 MiB/s`. */
export function describePull(pull: DataPull | null): string {
  if (pull === null) return 'a folder of an administrator';
  const { state, done_bytes: done, total_bytes: total, bytes_per_second: speed, error } = pull;
  const share = total === null || total === 0 ? '' : ` ${Math.floor((100 * done) / total)} % of ${sizeText(total)}`;
  switch (state) {
    case 'pending':
      return 'waits for its download';
    case 'running':
      return `downloading${share}${speed === null || speed === 0 ? '' : `, ${sizeText(speed)}/s`}`;
    case 'done':
      return `complete${total === null ? '' : `, ${sizeText(total)}`}`;
    case 'cancelled':
      return `cancelled${share === '' ? '' : ` at${share}`}`;
    case 'failed':
      return `failed: ${error?.code}: ${plain(error?.message ?? '')}`;
  }
}

/** Returns what to do after a failure, for commands. */
export function pullAdvice(name: string, { error }: DataPull): string {
  const again = `capstan data pull ${plain(name)}`;
  if (error?.code === 'access_denied')
    return `Set a variable to a token of an account with access, then run: ${again} --token-secret VARIABLE`;
  if (error?.code === 'model_not_found') return `Check the name, then run: ${again} ORG/NAME`;
  if (error?.code === 'quota_exceeded')
    return `Delete data, choose a smaller quantization, or ask an administrator for a larger quota, then run: ${again}`;
  return `The next pull continues the download: ${again}`;
}

export function sizeText(bytes: number): string {
  return formatMemory(Math.ceil(bytes / 2 ** 20));
}
