import type { Command } from 'commander';
import { collect, parseChoice, parseCount, UsageError } from 'capstan/internal/cli';
import type { DeploymentEdit, NewDeployment, Deployment } from '../api/objects';
import { UPSTREAM_INTERFACES } from '../gateway/upstreams/interfaces';
import { defined, secretOf } from './spec-flags';

/** Flags of a deployment that forwards to an upstream server. */
export interface UpstreamFlags {
  upstream?: string;
  upstreamModel?: string;
  upstreamSecret?: string;
  upstreamInterface?: string[];
  upstreamVersion?: string;
  removeUpstreamModel?: boolean;
  removeUpstreamSecret?: boolean;
}

export function addUpstreamFlags(command: Command, { isChange }: { isChange: boolean }): void {
  command
    .option(
      '--upstream <url>',
      `base URL of another server${isChange ? '' : ', which gets the requests'}, such as https://api.example.com/v1`,
    )
    .option(
      '--upstream-secret <variable>',
      "variable of this command's environment with the key for that server; it is stored encrypted",
    )
    .option(
      '--upstream-model <name>',
      `the only model that requests get there${isChange ? '' : ' (default: the one that the request names)'}`,
    )
    .option(
      '--upstream-interface <name>',
      `interface of that server: chat, responses or messages; repeatable; requests to the others are converted${isChange ? '; replaces all interfaces' : ' (default: chat)'}`,
      collect,
    );
  if (!isChange) return;
  command
    .option('--remove-upstream-secret', 'send no key')
    .option('--remove-upstream-model', 'send the model that the request names')
    .option('--upstream-version <number>', 'restore an earlier version of the upstream: see capstan versions list');
}

export function toUpstream(flags: UpstreamFlags, env: NodeJS.ProcessEnv): Pick<NewDeployment, 'upstream'> {
  const { upstream: url } = flags;
  const fields = toFields(flags, env);
  if (url !== undefined) return { upstream: { url, ...fields } };
  if (Object.keys(fields).length > 0)
    throw new UsageError('--upstream-secret, --upstream-model, --upstream-interface: expected --upstream beside them');
  return {};
}

export function toUpstreamEdit(flags: UpstreamFlags, env: NodeJS.ProcessEnv): Pick<DeploymentEdit, 'upstream'> {
  const { upstream, upstreamVersion: version } = flags;
  if (flags.upstreamSecret !== undefined && flags.removeUpstreamSecret === true)
    throw new UsageError('--remove-upstream-secret: cannot be used with --upstream-secret');
  if (flags.upstreamModel !== undefined && flags.removeUpstreamModel === true)
    throw new UsageError('--remove-upstream-model: cannot be used with --upstream-model');
  const edit = {
    ...defined('url', upstream),
    ...toFields(flags, env),
    ...(flags.removeUpstreamSecret === true ? { secret: null } : {}),
    ...(flags.removeUpstreamModel === true ? { model: null } : {}),
    ...defined('version', version === undefined ? undefined : parseCount(version, '--upstream-version')),
  };
  return Object.keys(edit).length === 0 ? {} : { upstream: edit };
}

function toFields(
  { upstreamModel: model, upstreamSecret, upstreamInterface: names }: UpstreamFlags,
  env: NodeJS.ProcessEnv,
): Omit<NonNullable<NewDeployment['upstream']>, 'url'> {
  const secret = upstreamSecret === undefined ? undefined : secretOf(upstreamSecret, env, '--upstream-secret');
  if (secret === '') throw new UsageError(`--upstream-secret: the variable ${upstreamSecret ?? ''} is empty`);
  return {
    ...defined('secret', secret),
    ...defined('model', model),
    ...defined(
      'interfaces',
      names
        ?.flatMap((text) => text.split(','))
        .map((name) => parseChoice(name.trim(), '--upstream-interface', UPSTREAM_INTERFACES)),
    ),
  };
}

/** Returns an upstream as one line of text. */
export function describeUpstream({ upstream }: Pick<Deployment, 'upstream'>): string | undefined {
  if (upstream === null) return undefined;
  const { url, model, interfaces, has_secret: hasSecret, version } = upstream;
  const parts = [
    interfaces.join(', '),
    model === null ? 'any model' : `model ${model}`,
    hasSecret ? 'with a key' : 'no key',
  ];
  return `${url} (${parts.join('; ')}; version ${version})`;
}
