import type { Command } from 'commander';
import { type CommandIo, parseChoice, renderTable, UsageError } from 'capstan/internal/cli';
import type { DataSource, DataSourceDetails, Image } from '../api/objects';
import { addDataPull } from './data-pull';
import { findDataSource, findImage, findOwner } from './find';
import { describePull } from './pull-text';
import { type Call, printJson, remote, requireYes } from './remote';
import { defined } from './spec-flags';
import { formatMemory, plain, renderFields } from './text';

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

/** Adds `capstan images …`, `capstan data …` and `capstan compute`. */
export function addResourceCommands(program: Command, io?: CommandIo): void {
  const images = program
    .command('images')
    .description('manage images, the environments that deployments run in')
    .addHelpText('after', IMAGES_TAIL);
  remote(images, 'list', 'list images', listImages, io);
  remote<ImageFlags>(images, 'create <name:version>', 'create an image (administrators)', createImage, io)
    .option('--type <type>', "image type: host-env, with the programs of the service's machine (default: host-env)")
    .option('--start <command>', 'start script of deployments and containers that set none')
    .option('--gpu', 'require at least one GPU');
  remote<{ yes?: boolean }>(
    images,
    'delete <name:version>',
    'delete an image (administrators)',
    removeImage,
    io,
  ).option('--yes', 'confirm the deletion');

  const data = program
    .command('data')
    .description('manage data sources, the folders that deployments and containers can mount')
    .addHelpText('after', DATA_TAIL);
  remote(data, 'list', 'list data sources', listData, io);
  remote<DataFlags>(
    data,
    'create <name>',
    "create a data source from a folder of the service's machine (administrators)",
    createData,
    io,
  )
    .requiredOption('--path <dir>', 'folder inside a --data-root of the service (required)')
    .option('--type <type>', 'type of the contents: dataset, model, workspace or upload (default: model)')
    .option(
      '--visibility <who>',
      'who can use it: private or org (only its owner), or public (all users) (default: private)',
    )
    .option('--owner <owner>', 'owner of the data source: org:SLUG (default: yourself)')
    .option('--description <text>', 'description of the contents');
  addDataPull(data, io);
  remote(data, 'get <name>', 'show a data source and what uses it', getData, io);
  remote<DataFlags>(data, 'edit <name>', 'change a data source (administrators)', editData, io)
    .option('--name <name>', 'new name')
    .option('--description <text>', 'description of the contents; an empty value removes it')
    .option('--visibility <who>', 'who can use it: private or org (only its owner), or public (all users)')
    .option('--path <dir>', 'new folder; only while nothing uses the data source');
  remote<{ cancel?: boolean }>(
    data,
    'measure <name>',
    'measure the size and the digest of the contents again (administrators)',
    measureData,
    io,
  ).option('--cancel', 'cancel the running measurement instead');
  remote<{ yes?: boolean }>(
    data,
    'delete <name>',
    'delete a data source; its folder is kept unless a pull created it',
    removeData,
    io,
  ).option('--yes', 'confirm the deletion');

  remote(
    program,
    'compute',
    'show the cores, memory and GPUs of the machine, and the isolation of deployments',
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
        image.gpu_required ? 'required' : '',
        image.owner === null ? 'everyone' : `${image.owner.type}:${plain(image.owner.name)}`,
        image.id,
      ]),
    ),
  );
}

async function createImage({ client, flags, args: [reference], io }: Call<ImageFlags>): Promise<void> {
  const [, name, version] = /^([^:]+):([^:]+)$/.exec(reference) ?? [];
  if (name === undefined) throw new UsageError(`image: expected NAME:VERSION, got '${reference}'`);
  const type = parseChoice(flags.type ?? 'host-env', '--type', ['host-env', 'builtin-runtime']);
  const created = await client.request<Image>('POST', '/images', {
    body: { name, version, type, ...defined('default_start', flags.start), ...defined('gpu_required', flags.gpu) },
  });
  if (flags.json) return printJson(io, created);
  io.out(`created ${plain(created.name)}:${plain(created.version)} (${created.id})\n`);
}

async function removeImage({ client, flags, args: [reference], io }: Call<{ yes?: boolean }>): Promise<void> {
  const { id, name, version } = await findImage(client, reference);
  requireYes(flags, `delete ${plain(name)}:${plain(version)} (${id})`);
  await client.request('DELETE', `/images/${id}`);
  if (!flags.json) io.out(`deleted ${plain(name)}:${plain(version)}\n`);
}

async function listData({ client, flags, io }: Call<object>): Promise<void> {
  const found = await client.dataSources.list();
  if (flags.json) return printJson(io, { data: found, next: null });
  if (found.length === 0)
    return io.err(
      'No data sources found. Create one with: capstan data pull NAME ORG/MODEL, or as an administrator with: capstan data create NAME --path DIR\n',
    );
  io.out(
    renderTable(
      ['NAME', 'TYPE', 'SIZE', 'VISIBILITY', 'OWNER', 'ID'],
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

/** Returns the size, or the state of the measurement while the size is unknown. */
function sizeOf({ size_bytes: size, measurement: { state }, pull }: DataSource): string {
  if (pull !== null && !pull.is_filled) return pull.state === 'failed' ? 'failed' : describePull(pull);
  if (size === null) return state;
  const text = formatMemory(Math.ceil(size / 2 ** 20));
  return state === 'measured' ? text : `${text} (${state})`;
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
      ['visibility', source.visibility],
      ['folder', source.path === null ? undefined : plain(source.path)],
      ['size', sizeOf(source)],
      ['files', source.file_count === null ? undefined : String(source.file_count)],
      ['digest', source.digest ?? undefined],
      ...pullFields(source),
      ['note', source.measurement.message === null ? undefined : plain(source.measurement.message)],
      ...(users.length === 0
        ? [['used by', source.used_by_others === 0 ? 'nothing' : undefined] as const]
        : users.map((user) => ['used by', user] as const)),
      ['used by', source.used_by_others === 0 ? undefined : `${source.used_by_others} of other owners`],
    ]),
  );
}

function pullFields({ pull }: DataSourceDetails): (readonly [string, string | undefined])[] {
  if (pull === null) return [];
  return [
    ['model', `${plain(pull.model)}${pull.hub === 'huggingface' ? '' : ` (${pull.hub})`}`],
    ['commit', pull.commit === null ? undefined : plain(pull.commit)],
    ['download', describePull(pull)],
    ['hub token', pull.has_token ? 'set' : undefined],
    ['note', pull.note === null ? undefined : plain(pull.note)],
  ];
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
  if (Object.keys(body).length === 0)
    throw new UsageError('nothing to change: expected --name, --description, --visibility or --path');
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
  const created = await client.request<DataSource>('POST', '/data-sources', { body });
  if (flags.json) return printJson(io, created);
  io.out(`created ${plain(created.name)} (${created.id})\n`);
}

async function removeData({ client, flags, args: [name], io }: Call<{ yes?: boolean }>): Promise<void> {
  const source = await findDataSource(client, name);
  requireYes(
    flags,
    `delete ${plain(source.name)} (${source.id})`,
    source.pull === null ? 'this cannot be undone, but its folder stays' : 'its model is deleted from the disk',
  );
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
          ? 'deployments can reach other machines'
          : 'deployments cannot reach other machines: mount their files with --input or --home',
      ],
      [
        'start scripts',
        isolation.allows_start_scripts ? 'allowed' : 'not allowed: see --allow-unisolated of capstan up',
      ],
      ['cores', `${total.cpu_millis / 1000}, shared by all deployments`],
      ['memory', `${formatMemory(free.memory_mb)} of ${formatMemory(total.memory_mb)} free`],
      ...gpus.map(
        (gpu) =>
          [
            'GPU',
            `${gpu.type}, ${formatMemory(gpu.memory_mb)}, ${gpu.free ? 'free' : 'in use'} (${gpu.uuid})`,
          ] as const,
      ),
    ]),
  );
}

const IMAGES_TAIL = `
Examples:
  capstan images list
  capstan images create python:3.13 --start 'exec python3 /platform/input/input0/serve.py'
`;

const DATA_TAIL = `
Examples:
  capstan data create qwen --path /data/Qwen2.5-0.5B-Instruct
  capstan data pull qwen Qwen/Qwen2.5-0.5B-Instruct --wait
  capstan data get qwen
`;
