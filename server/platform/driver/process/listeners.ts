import { readdir, readFile, readlink } from 'node:fs/promises';
import type { Misplaced } from '../driver';
import type { Level } from './replica-layout';

export interface Listener {
  address: string;
  port: number;
  inode: string;
}

const LISTENING = '0A';

/** Returns all listening TCP sockets in the network namespace of a process. */
export async function listenersOf(pid: number): Promise<Listener[]> {
  const tables = await Promise.all(
    ['tcp', 'tcp6'].map((name) => readFile(`/proc/${pid}/net/${name}`, 'utf8').catch(() => '')),
  );
  return tables.flatMap(parseListeners);
}

/** Parses /proc/PID/net/tcp or tcp6. */
function parseListeners(table: string): Listener[] {
  const rows = table
    .split('\n')
    .slice(1)
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === LISTENING);
  return rows.map(([, local, , , , , , , , inode]) => {
    const [address, port] = local.split(':');
    return { address: address.length === 8 ? ipv4(address) : ipv6(address), port: parseInt(port, 16), inode };
  });
}

/** The kernel prints each 32-bit word in host byte order. */
function ipv4(hex: string): string {
  return [...Buffer.from(hex, 'hex').reverse()].join('.');
}

function ipv6(hex: string): string {
  const words = hex.match(/.{8}/g)!.map((word) => Buffer.from(word, 'hex').reverse());
  const bytes = Buffer.concat(words);
  if (bytes.every((byte) => byte === 0)) return '::';
  if (bytes.subarray(0, 15).every((byte) => byte === 0) && bytes[15] === 1) return '::1';
  if (bytes.subarray(0, 10).every((byte) => byte === 0) && bytes.readUInt16BE(10) === 0xffff)
    return [...bytes.subarray(12)].join('.');
  return bytes.toString('hex').match(/.{4}/g)!.join(':');
}

/** Returns the listening sockets of these processes only. For replicas in the host's network namespace. */
export async function ownListeners(pids: readonly number[]): Promise<Listener[]> {
  const own = new Set((await Promise.all(pids.map(socketsOf))).flat());
  return pids.length === 0 ? [] : (await listenersOf(pids[0])).filter(({ inode }) => own.has(inode));
}

async function socketsOf(pid: number): Promise<string[]> {
  const folder = `/proc/${pid}/fd`;
  const names = await readdir(folder).catch(() => []);
  const links = await Promise.all(names.map((name) => readlink(`${folder}/${name}`).catch(() => '')));
  return links.flatMap((link) => /^socket:\[(\d+)\]$/.exec(link)?.[1] ?? []);
}

const isLoopback = (address: string): boolean => address.startsWith('127.') || address === '::1';
const isAny = (address: string): boolean => address === '0.0.0.0' || address === '::';

/** Returns undefined when a deployment listens at its expected address, else what is wrong. */
export function checkListeners(
  listeners: readonly Listener[],
  level: Level,
  host: string,
  port: number,
): Misplaced | undefined {
  const there = listeners.filter((listener) => listener.port === port);
  if (there.some(({ address }) => isAny(address) || (level === 'L2' ? !isLoopback(address) : address === host)))
    return undefined;
  const where =
    level === 'L2'
      ? `0.0.0.0, port ${port}`
      : `PLATFORM_SERVING_HOST, port PLATFORM_SERVING_PORT (here ${host}:${port})`;
  if (there.length > 0) {
    return {
      reason: 'bound_to_loopback',
      message: `The deployment listens on ${there[0].address}:${port}, which only the deployment itself can reach: listen on ${where}`,
    };
  }
  if (listeners.length > 0) {
    const ports = [...new Set(listeners.map((listener) => listener.port))].join(', ');
    return {
      reason:
        level === 'L0' && !listeners.some((listener) => listener.port === 8080) ? 'port_80_not_bound' : 'wrong_port',
      message: `The deployment listens on port ${ports}: listen on ${where}${isolationHint(level)}`,
    };
  }
  return {
    reason: 'port_80_not_bound',
    message: `The deployment does not listen on any port: listen on ${where}${isolationHint(level)}`,
  };
}

/** Explains to authors of start scripts why port 80 is not available on this machine. */
export function isolationHint(level: Level): string {
  if (level === 'L0')
    return '. The service can use neither namespaces nor port 80 on this machine, so each deployment has its own port: the start script must read it from these variables';
  if (level === 'L1')
    return '. The service cannot use namespaces on this machine, so each deployment has its own address: the start script must read it from these variables';
  return '';
}
