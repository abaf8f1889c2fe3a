import type { Command } from 'commander';
import type { CommandIo } from 'capstan/internal/cli';
import type { NewDeployment } from '../api/objects';
import {
  addRoutingFlags,
  addScaleFlags,
  addStrategyFlag,
  addWaitFlags,
  type RoutingFlags,
  type ScaleFlags,
  timeoutOf,
  toRouting,
  toScale,
  toStrategy,
  type WaitFlags,
} from './deploy-flags';
import { describeDeployment } from './deployments';
import { findContainer, findOwner } from './find';
import { type Call, printJson, remote } from './remote';
import { addSpecFlags, defined, type SpecFlags, toSpec } from './spec-flags';
import { addUpstreamFlags, toUpstream, type UpstreamFlags } from './upstream-flags';
import { waitUntilRunning } from './wait';

interface Flags extends SpecFlags, ScaleFlags, RoutingFlags, UpstreamFlags, WaitFlags {
  owner?: string;
  container?: string;
  accessControl?: boolean;
  note?: string;
  strategy?: string;
}

/** Adds `capstan deploy`. */
export function addDeployCommand(program: Command, io?: CommandIo): void {
  const command = remote<Flags>(
    program,
    'deploy <name>',
    'create a deployment and its first version; by default it serves the embedded model',
    deploy,
    io,
  );
  addSpecFlags(command, { of: 'deployment', isChange: false });
  addScaleFlags(command, { isChange: false });
  addStrategyFlag(command, 'auto');
  addRoutingFlags(command, { isChange: false });
  addUpstreamFlags(command, { isChange: false });
  command
    .option('--container <name>', 'deploy what this training container runs; other flags override its settings')
    .option('--owner <owner>', 'owner of the deployment: org:SLUG (default: yourself)')
    .option('--access-control', 'require a valid access key for every request (default: off; on with --upstream)')
    .option('--note <text>', 'note for the version');
  addWaitFlags(command, 'the deployment serves').addHelpText('after', HELP_TAIL);
}

async function deploy({ client, flags, args: [name], io }: Call<Flags>): Promise<void> {
  const owner = await findOwner(client, flags.owner);
  const body: NewDeployment = {
    name,
    ...(await toSpec(client, flags, io.env)),
    ...toScale(flags),
    ...defined('owner', owner),
    ...defined('note', flags.note),
    ...defined('access_control', flags.accessControl),
    ...toRouting(flags),
    ...toUpstream(flags, io.env),
    ...defined('strategy', toStrategy(flags.strategy)),
  };
  const created =
    flags.container === undefined
      ? await client.deployments.create(body)
      : await client.containers.deploy((await findContainer(client, flags.container)).id, body);
  const deployment = flags.wait === true ? await waitUntilRunning(client, created.id, timeoutOf(flags), io) : created;
  if (flags.json) return printJson(io, deployment);
  io.out(describeDeployment(deployment));
}

const HELP_TAIL = `
Examples:
  capstan deploy chat --wait                                    the embedded model
  capstan deploy qwen --model qwen2.5-0.5b --max-model-len 8K   a data source from capstan data list
  capstan deploy small --model Qwen/Qwen2.5-0.5B-Instruct --quantization int8 --wait   a model from the hub
  capstan deploy own --input app --start 'exec python3 /platform/input/input0/serve.py --port 80'
  capstan deploy cloud --upstream https://api.example.com/v1 --upstream-secret PROVIDER_KEY   another server
  capstan deploy chat --container lab --access-control          what the training container runs
`;
