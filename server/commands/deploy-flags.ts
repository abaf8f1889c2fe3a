import type { Command } from 'commander';
import { parseDuration } from '../access/durations';
import type { NewDeployment } from '../api/objects';
import { parseChoice, UsageError } from '../flag-values';
import { defined, seconds } from './spec-flags';

export interface ScaleFlags {
  replicas?: string;
  minReplicas?: string;
  maxReplicas?: string;
  idleTimeout?: string;
  coldStartWait?: string;
}

export interface WaitFlags {
  wait?: boolean;
  timeout?: string;
}

const DEFAULT_TIMEOUT_S = 1_800;
const MAX_REPLICAS = 64;

export function addScaleFlags(command: Command): Command {
  return command
    .option('--replicas <number>', 'how many run at once (default: 1)')
    .option('--min-replicas <number>', 'at least so many; 0 lets it scale to zero')
    .option('--max-replicas <number>', 'at most so many')
    .option('--idle-timeout <duration>', 'scale to zero after so long without a request, as 15m, or never')
    .option(
      '--cold-start-wait <duration>',
      'how long a request waits for a deployment that was scaled to zero, as 60s',
    );
}

export function toScale({
  replicas,
  minReplicas,
  maxReplicas,
  idleTimeout,
  coldStartWait,
}: ScaleFlags): Pick<NewDeployment, 'min_replicas' | 'max_replicas' | 'idle_timeout_s' | 'cold_start_wait_s'> {
  if (replicas !== undefined && (minReplicas ?? maxReplicas) !== undefined)
    throw new UsageError('--replicas: expected without --min-replicas and --max-replicas');
  return {
    ...defined('min_replicas', count('--min-replicas', minReplicas) ?? count('--replicas', replicas)),
    ...defined('max_replicas', count('--max-replicas', maxReplicas) ?? count('--replicas', replicas)),
    ...defined('idle_timeout_s', idleTimeout === 'never' ? null : seconds('--idle-timeout', idleTimeout)),
    ...defined('cold_start_wait_s', seconds('--cold-start-wait', coldStartWait)),
  };
}

export function toStrategy(text: string | undefined): NewDeployment['strategy'] {
  return text === undefined ? undefined : parseChoice(text, '--strategy', ['auto', 'surge', 'replace']);
}

export function addWaitFlags(command: Command): Command {
  return command
    .option('--wait', 'until it serves; otherwise the command returns at once')
    .option('--timeout <duration>', 'how long at most (default: 30m)');
}

export function timeoutOf({ timeout }: WaitFlags): number {
  return timeout === undefined ? DEFAULT_TIMEOUT_S : parseDuration('--timeout', timeout) / 1000;
}

function count(flag: string, text: string | undefined): number | undefined {
  if (text !== undefined && !(/^\d{1,2}$/.test(text) && Number(text) <= MAX_REPLICAS))
    throw new UsageError(`${flag}: expected a whole number up to ${MAX_REPLICAS}, got '${text}'`);
  return text === undefined ? undefined : Number(text);
}
