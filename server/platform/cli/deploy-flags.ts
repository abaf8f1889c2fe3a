import type { Command } from 'commander';
import { collect, parseChoice, parseDuration, UsageError } from 'capstan/internal/cli';
import type { NewDeployment } from '../api/objects';
import { MAX_ALIASES, MAX_FALLBACKS } from '../deployments/routing-schema';
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

/** A change keeps the scale that no flag sets, so its help shows no defaults. */
export function addScaleFlags(command: Command, { isChange }: { isChange: boolean }): Command {
  const byDefault = (value: string): string => (isChange ? '' : ` (default: ${value})`);
  return command
    .option(
      '--replicas <number>',
      `number of replicas, 1 to ${MAX_REPLICAS}; sets the minimum and the maximum${byDefault('1')}`,
    )
    .option(
      '--min-replicas <number>',
      `minimum number of replicas, 0 to ${MAX_REPLICAS}; 0 allows scaling to zero${byDefault('1')}`,
    )
    .option(
      '--max-replicas <number>',
      `maximum number of replicas, 1 to ${MAX_REPLICAS}${byDefault('the minimum, at least 1')}`,
    )
    .option(
      '--idle-timeout <duration>',
      `scale to zero after this time without a request, for example 10m, or never${byDefault('never; 15m if --min-replicas is 0')}`,
    )
    .option(
      '--cold-start-wait <duration>',
      `maximum time that a request waits while a deployment starts from zero${byDefault('60s')}`,
    );
}

export interface RoutingFlags {
  alias?: string[];
  removeAliases?: boolean;
  fallback?: string[];
  fallbackAfter?: string;
  removeFallbacks?: boolean;
}

export function addRoutingFlags(command: Command, { isChange }: { isChange: boolean }): Command {
  const replacing = (what: string): string => (isChange ? `; replaces all ${what}` : '');
  command
    .option(
      '--alias <name>',
      `another name for the deployment in the model field of requests; repeatable, at most ${MAX_ALIASES}${replacing('aliases')}`,
      collect,
    )
    .option(
      '--fallback <name>',
      `deployment that gets the requests that this one cannot serve; repeatable, at most ${MAX_FALLBACKS}${replacing('fallbacks')}`,
      collect,
    )
    .option(
      '--fallback-after <duration>',
      `how long the first byte may take before the next fallback is tried, for example 20s, or never${isChange ? '' : ' (default: never)'}`,
    );
  if (isChange)
    command.option('--remove-aliases', 'remove all aliases').option('--remove-fallbacks', 'remove all fallbacks');
  return command;
}

export function toRouting({
  alias,
  removeAliases,
  fallback,
  fallbackAfter,
  removeFallbacks,
}: RoutingFlags): Pick<NewDeployment, 'aliases' | 'fallbacks' | 'fallback_after_s'> {
  if (alias !== undefined && removeAliases === true)
    throw new UsageError('--remove-aliases: cannot be used with --alias');
  if (fallback !== undefined && removeFallbacks === true)
    throw new UsageError('--remove-fallbacks: cannot be used with --fallback');
  return {
    ...defined('aliases', removeAliases === true ? [] : alias),
    ...defined('fallbacks', removeFallbacks === true ? [] : fallback),
    ...defined('fallback_after_s', fallbackAfter === 'never' ? null : seconds('--fallback-after', fallbackAfter)),
  };
}

export function addStrategyFlag(command: Command, defaultValue?: string): Command {
  return command.option(
    '--strategy <name>',
    `roll-out strategy: surge (start the new version, then stop the old one), replace (stop the old one first), or auto (surge if both fit)${defaultValue === undefined ? '' : ` (default: ${defaultValue})`}`,
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
    throw new UsageError('--replicas: cannot be used with --min-replicas or --max-replicas');
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

/** @param event The end of the wait, for example `the deployment serves`. */
export function addWaitFlags(command: Command, event: string): Command {
  return command
    .option('--wait', `wait until ${event}, and print each state`)
    .option('--timeout <duration>', 'maximum time to wait with --wait, for example 90s (default: 30m)');
}

export function timeoutOf({ timeout }: WaitFlags): number {
  return timeout === undefined ? DEFAULT_TIMEOUT_S : parseDuration('--timeout', timeout) / 1000;
}

function count(flag: string, text: string | undefined): number | undefined {
  if (text !== undefined && !(/^\d{1,2}$/.test(text) && Number(text) <= MAX_REPLICAS))
    throw new UsageError(`${flag}: expected a whole number up to ${MAX_REPLICAS}, got '${text}'`);
  return text === undefined ? undefined : Number(text);
}
