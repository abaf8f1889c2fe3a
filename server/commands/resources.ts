import type { Command } from 'commander';
import type { DataSource, DataSourceDetails, Image } from '../api/objects';
import { parseChoice, UsageError } from '../flag-values';
import { renderTable } from '../text-table';
import { findDataSource, findImage, findOwner } from './find';
import type { CommandIo } from './io';
import { type Call, printJson, remote } from './remote';
import { defined } from './spec-flags';
import { megabytes, plain, renderFields } from './text';

interface DataFlags {
  path?: string;
  name?: string;
  description?: string;
  type?: string;
  visibility?: string;
  owner?: string;
}

interface ImageFlags {
  type?: string;
  start?: string;
  gpu?: boolean;
}

/** Mounts `capstan images …`, `capstan data …` and `capstan compute`: what deployments are made of. */
export function addResourceCommands(program: Command, io?: CommandIo): void {
  const images = program.command('images').description('what deployments run in');
  remote(images, 'list', 'show images', listImages, io);
  remote<ImageFlags>(images, 'create <name:version>', 'make one (administrators)', createImage, io)
    .option('--type <type>', "host-env: the programs of the service's machine (default: host-env)")
    .option('--start <command>', 'the start script of those that have none')
    .option('--gpu', 'it needs a GPU');
  remote<{ yes?: boolean }>(images, 'delete <name:version>', 'delete one (administrators)', removeImage, io).option(
    '--yes',
    'yes, for good',
  );

  const data = program
    .command('data')
    .description('data sources: folders that deployments and containers can be bound to');
  remote(data, 'list', 'show data sources', listData, io);
  remote<DataFlags>(data, 'create <name>', "offer a folder of the service's machine (administrators)", createData, io)
    .requiredOption('--path <dir>', 'the folder, inside a --data-root of the service')
    .option('--type <type>', 'dataset, model, workspace or upload (default: model)')
    .option('--visibility <who>', 'private, org or public (default: private)')
    .option('--owner <owner>', 'org:SLUG (default: yourself)')
    .option('--description <text>', 'what it holds');
  remote(data, 'get <name>', 'show one, and what is bound to it', getData, io);
  remote<DataFlags>(data, 'edit <name>', 'change one (administrators)', editData, io)
    .option('--name <name>', 'its new name')
    .option('--description <text>', 'what it holds; empty for nothing')
    .option('--visibility <who>', 'private, org or public')
    .option('--path <dir>', 'another folder, while nothing is bound to it');
  remote<{ cancel?: boolean }>(
    data,
    'measure <name>',
    'find out anew how large one is, and the digest of its contents (administrators)',
    measureData,
    io,
  ).option('--cancel', 'no further');
  remote<{ yes?: boolean }>(data, 'delete <name>', 'forget one; the folder stays', removeData, io).option(
    '--yes',
    'yes, for good',
  );

  remote(
    program,
    'compute',
    'show the machine: cores, memory and GPUs, and how deployments are kept apart',
    compute,
    io,
  );
}

async function listImages({ client, flags, io }: Call<object>): Promise<void> {
  const found = await client.images.list();
  if (flags.json) return printJson(io, { data: found, next: null });
  io.out(
    renderTable(
      ['IMAGE', 'TYPE', 'GPU', 'OWNER', 'ID'],
      found.map((image) => [
        `${plain(image.name)}:${plain(image.version)}`,
        image.type,
        image.gpu_required ? 'needed' : '',
        image.owner === null ? 'everybody' : `${image.owner.type}:${plain(image.owner.name)}`,
        image.id,
      ]),
    ),
  );
}

async function createImage({ client, flags, args: [reference], io }: Call<ImageFlags>): Promise<void> {
  const [, name, version] = /^([^:]+):([^:]+)$/.exec(reference) ?? [];
  if (name === undefined) throw new UsageError(`image: expected NAME:VERSION, got '${reference}'`);
  const type = parseChoice(flags.type ?? 'host-env', '--type', ['host-env', 'builtin-runtime']);
  const made = await client.request<Image>('POST', '/images', {
    body: { name, version, type, ...defined('default_start', flags.start), ...defined('gpu_required', flags.gpu) },
  });
  if (flags.json) return printJson(io, made);
  io.out(`created ${plain(made.name)}:${plain(made.version)} (${made.id})\n`);
}

async function removeImage({ client, flags, args: [reference], io }: Call<{ yes?: boolean }>): Promise<void> {
  const { id, name, version } = await findImage(client, reference);
  if (flags.yes !== true)
    throw new UsageError(`this cannot be undone: --yes deletes ${plain(name)}:${plain(version)} (${id})`);
  await client.request('DELETE', `/images/${id}`);
  if (!flags.json) io.out(`deleted ${plain(name)}:${plain(version)}\n`);
}

async function listData({ client, flags, io }: Call<object>): Promise<void> {
  const found = await client.dataSources.list();
  if (flags.json) return printJson(io, { data: found, next: null });
  if (found.length === 0)
    return io.err('No data sources yet: an administrator makes one by capstan data create NAME --path DIR.\n');
  io.out(
    renderTable(
      ['NAME', 'TYPE', 'SIZE', 'SEEN BY', 'OWNER', 'ID'],
      found.map((source) => [
        plain(source.name),
        source.type,
        sizeOf(source),
        source.visibility,
        `${source.owner.type}:${plain(source.owner.name)}`,
        source.id,
      ]),
    ),
  );
}

/** What is not known yet says why. */
function sizeOf({ size_bytes: size, measurement: { state } }: DataSource): string {
  return size === null ? state : `${megabytes(Math.ceil(size / 2 ** 20))}${state === 'measured' ? '' : ` (${state})`}`;
}

async function getData({ client, flags, args: [name], io }: Call<object>): Promise<void> {
  const source = await client.request<DataSourceDetails>(
    'GET',
    `/data-sources/${(await findDataSource(client, name)).id}`,
  );
  if (flags.json) return printJson(io, source);
  const users = source.used_by.map(
    (user) =>
      `${user.type} ${plain(user.name)}${user.version === null ? '' : ` version ${user.version}`} (${user.mount})`,
  );
  io.out(
    renderFields([
      ['name', plain(source.name)],
      ['id', source.id],
      ['description', source.description === null ? undefined : plain(source.description)],
      ['type', source.type],
      ['owner', `${source.owner.type}:${plain(source.owner.name)}`],
      ['seen by', source.visibility],
      ['folder', source.path === null ? undefined : plain(source.path)],
      ['size', sizeOf(source)],
      ['files', source.file_count === null ? undefined : String(source.file_count)],
      ['digest', source.digest ?? undefined],
      ['note', source.measurement.message === null ? undefined : plain(source.measurement.message)],
      ...(users.length === 0
        ? [['used by', source.used_by_others === 0 ? 'nothing' : undefined] as const]
        : users.map((user) => ['used by', user] as const)),
      ['used by', source.used_by_others === 0 ? undefined : `${source.used_by_others} more, of others`],
    ]),
  );
}

async function editData({ client, flags, args: [name], io }: Call<DataFlags>): Promise<void> {
  const { id, rev } = await findDataSource(client, name);
  const body = {
    ...defined('name', flags.name),
    ...defined('description', flags.description === '' ? null : flags.description),
    ...defined('path', flags.path),
    ...defined(
      'visibility',
      flags.visibility === undefined
        ? undefined
        : parseChoice(flags.visibility, '--visibility', ['private', 'org', 'public']),
    ),
  };
  if (Object.keys(body).length === 0) throw new UsageError('expected --name, --description, --visibility or --path');
  const changed = await client.request<DataSource>('PATCH', `/data-sources/${id}`, { body, ifMatch: rev });
  if (flags.json) return printJson(io, changed);
  io.out(`changed ${plain(changed.name)} (${id})\n`);
}

async function measureData({ client, flags, args: [name], io }: Call<{ cancel?: boolean }>): Promise<void> {
  const { id } = await findDataSource(client, name);
  const source = await client.request<DataSource>(
    flags.cancel === true ? 'DELETE' : 'POST',
    `/data-sources/${id}/measurement`,
  );
  if (flags.json) return printJson(io, source);
  io.out(`the measurement of ${plain(source.name)} is ${source.measurement.state}\n`);
}

async function createData({ client, flags, args: [name], io }: Call<DataFlags>): Promise<void> {
  const type = parseChoice(flags.type ?? 'model', '--type', ['dataset', 'model', 'workspace', 'upload']);
  const visibility = parseChoice(flags.visibility ?? 'private', '--visibility', ['private', 'org', 'public']);
  const body = {
    name,
    type,
    visibility,
    path: flags.path,
    ...defined('description', flags.description),
    ...defined('owner', await findOwner(client, flags.owner)),
  };
  const made = await client.request<DataSource>('POST', '/data-sources', { body });
  if (flags.json) return printJson(io, made);
  io.out(`created ${plain(made.name)} (${made.id})\n`);
}

async function removeData({ client, flags, args: [name], io }: Call<{ yes?: boolean }>): Promise<void> {
  const source = await findDataSource(client, name);
  if (flags.yes !== true)
    throw new UsageError(`this cannot be undone: --yes forgets ${plain(source.name)} (${source.id}); its folder stays`);
  await client.request('DELETE', `/data-sources/${source.id}`);
  if (!flags.json) io.out(`deleted ${plain(source.name)}\n`);
}

async function compute({ client, flags, io }: Call<object>): Promise<void> {
  const found = await client.compute();
  if (flags.json) return printJson(io, found);
  const { driver, isolation, total, free, gpus } = found;
  io.out(
    renderFields([
      ['driver', driver],
      ['isolation', `${isolation.level}: ${isolation.reason}`],
      [
        'network',
        isolation.outgoing_network
          ? 'what runs here reaches other machines'
          : 'no way out: what is needed has to come with data bindings or a home',
      ],
      [
        'start scripts',
        isolation.allows_start_scripts ? 'for everybody' : 'not here: see --allow-unisolated of capstan up',
      ],
      ['cores', `${total.cpu_millis / 1000}, shared by all`],
      ['memory', `${megabytes(free.memory_mb)} of ${megabytes(total.memory_mb)} free`],
      ...gpus.map(
        (gpu) =>
          ['GPU', `${gpu.type}, ${megabytes(gpu.memory_mb)}, ${gpu.free ? 'free' : 'taken'} (${gpu.uuid})`] as const,
      ),
    ]),
  );
}
