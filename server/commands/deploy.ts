import type { Command } from 'commander';
import type { NewDeployment } from '../api/objects';
import {
  addScaleFlags,
  addWaitFlags,
  type ScaleFlags,
  timeoutOf,
  toScale,
  toStrategy,
  type WaitFlags,
} from './deploy-flags';
import { describeDeployment } from './deployments';
import { findContainer, findOwner } from './find';
import type { CommandIo } from './io';
import { type Call, printJson, remote } from './remote';
import { addSpecFlags, defined, type SpecFlags, toSpec } from './spec-flags';
import { waitUntilRunning } from './wait';

interface Flags extends SpecFlags, ScaleFlags, WaitFlags {
  owner?: string;
  container?: string;
  accessControl?: boolean;
  note?: string;
  strategy?: string;
}

/** Mounts `capstan deploy`. */
export function addDeployCommand(program: Command, io?: CommandIo): void {
  const command = remote<Flags>(
    program,
    'deploy <name>',
    'make a deployment: the embedded model in the built-in runtime, unless flags say otherwise',
    deploy,
    io,
  );
  addWaitFlags(addScaleFlags(addSpecFlags(command)))
    .option('--container <name>', 'deploy a training container: what flags do not say is taken from it')
    .option('--owner <owner>', 'org:SLUG (default: yourself)')
    .option('--access-control', 'let in requests with a key alone (default: anybody may call)')
    .option('--strategy <name>', 'how new versions take over: auto, surge or replace (default: auto)')
    .option('--note <text>', 'shown with the version')
    .addHelpText('after', HELP_TAIL);
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
    ...defined('strategy', toStrategy(flags.strategy)),
  };
  const made =
    flags.container === undefined
      ? await client.deployments.create(body)
      : await client.containers.deploy((await findContainer(client, flags.container)).id, body);
  const deployment = flags.wait === true ? await waitUntilRunning(client, made.id, timeoutOf(flags), io) : made;
  if (flags.json) return printJson(io, deployment);
  io.out(describeDeployment(deployment));
}

const HELP_TAIL = `
Examples:
  capstan deploy chat --wait                                    the embedded model
  capstan deploy qwen --model qwen2.5-0.5b --max-model-len 8K   a model of capstan data list
  capstan deploy own --start 'exec python3 serve.py --port 80' --input weights
  capstan deploy chat --container lab --access-control          as the training container runs it
`;
