/** What the service and its deployments left on the machine after their end. */
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { isListening } from './service-process';

export interface Places {
  /** All files of the run are below it. */
  folder: string;
  dataDir: string;
  tmpDir: string;
  port: number;
  /** Ids of all replicas of the run. */
  replicaIds: ReadonlySet<string>;
}

/** Returns a line for everything that is left. */
export async function remains(places: Places): Promise<string[]> {
  return [
    ...processes(places).map((text) => `process ${text}`),
    ...groups(places).map((path) => `control group ${path}`),
    ...mounts(places).map((path) => `mount ${path}`),
    ...sockets(places).map((path) => `socket ${path}`),
    ...readdirSync(places.tmpDir).map((name) => `temporary file ${name}`),
    ...['service.json'].filter((name) => existsSync(join(places.dataDir, name))).map((name) => `file ${name}`),
    ...(await ports(places)).map((port) => `port ${port}`),
  ];
}

function processes({ folder, replicaIds }: Places): string[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && name !== String(process.pid))
    .flatMap((pid) => {
      const [command, environment, group] = ['cmdline', 'environ', 'cgroup'].map((file) =>
        read(`/proc/${pid}/${file}`),
      );
      const isOurs = [...replicaIds].some((id) => group.includes(id)) || `${command}${environment}`.includes(folder);
      return isOurs ? [`${pid}: ${command.replaceAll('\0', ' ').slice(0, 200)}`] : [];
    });
}

function read(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}

function groups({ replicaIds }: Places): string[] {
  return foldersBelow('/sys/fs/cgroup').filter((path) => replicaIds.has(/capstan_(rep_\w+)$/.exec(path)?.[1] ?? ''));
}

function foldersBelow(folder: string): string[] {
  try {
    return readdirSync(folder, { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .flatMap(({ name }) => [join(folder, name), ...foldersBelow(join(folder, name))]);
  } catch {
    return [];
  }
}

/** The small disk itself is mounted until the end. */
function mounts({ folder, dataDir }: Places): string[] {
  return readFileSync('/proc/self/mounts', 'utf8')
    .split('\n')
    .map((line) => line.split(' ')[1] ?? '')
    .filter((path) => path.startsWith(folder) && !dataDir.startsWith(path));
}

function sockets({ folder }: Places): string[] {
  const bound = readFileSync('/proc/net/unix', 'utf8')
    .split('\n')
    .filter((line) => line.includes(folder));
  const isSocket = (path: string): boolean => statSync(path, { throwIfNoEntry: false })?.isSocket() === true;
  const files = [folder, ...foldersBelow(folder)].flatMap((path) => readdirSync(path).map((name) => join(path, name)));
  return [...bound, ...files.filter(isSocket)];
}

async function ports({ port }: Places): Promise<number[]> {
  const used = await Promise.all([port, port + 1].map(async (one) => ((await isListening(one)) ? [one] : [])));
  return used.flat();
}

/** Returns the files below these paths that contain one of the secrets. */
export function filesWithSecret(paths: readonly string[], secrets: readonly string[]): string[] {
  return paths.flatMap((path) => {
    const stat = statSync(path, { throwIfNoEntry: false });
    if (stat === undefined) return [];
    if (stat.isDirectory())
      return filesWithSecret(
        readdirSync(path).map((name) => join(path, name)),
        secrets,
      );
    const text = stat.isFile() ? readFileSync(path, 'latin1') : '';
    return secrets.some((secret) => text.includes(secret)) ? [path] : [];
  });
}
