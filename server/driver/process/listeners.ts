import { readdir, readFile, readlink } from 'node:fs/promises';
import type { Misplaced } from '../driver';
import type { Level } from './world';

export interface Listener {
  address: string;
  port: number;
  inode: string;
}

const LISTENING = '0A';

/** Of the network that a process is in. */
export async function listenersOf(pid: number): Promise<Listener[]> {
  const tables = await Promise.all(
    ['tcp', 'tcp6'].map((name) => readFile(`/proc/${pid}/net/${name}`, 'utf8').catch(() => '')),
  );
  return tables.flatMap(parseListeners);
}

/** The table as /proc has it. */
export function parseListeners(table: string): Listener[] {
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

/** The kernel prints each word in the order of this machine. */
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

/** On the network of the host: those of these processes alone. */
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

/** Whether a deployment listens where it is asked; undefined when it does. */
export function judge(listeners: readonly Listener[], level: Level, host: string, port: number): Misplaced | undefined {
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
      message: `It listens on ${there[0].address}:${port}, where nothing but itself can reach it: it has to listen on ${where}`,
    };
  }
  if (listeners.length > 0) {
    const ports = [...new Set(listeners.map((listener) => listener.port))].join(', ');
    return {
      reason:
        level === 'L0' && !listeners.some((listener) => listener.port === 8080) ? 'port_80_not_bound' : 'wrong_port',
      message: `It listens on port ${ports}: a deployment has to listen on ${where}${why(level)}`,
    };
  }
  return {
    reason: 'port_80_not_bound',
    message: `It does not listen on any port: a deployment has to listen on ${where}${why(level)}`,
  };
}

/** What a script that insists on port 80 has to know of this machine. */
export function why(level: Level): string {
  if (level === 'L0')
    return '. This machine lets the service use neither namespaces nor port 80, so that each deployment has a port of its own, which its start script has to take from these variables';
  if (level === 'L1')
    return '. This machine lets the service use no namespaces, so that each deployment has an address of its own, which its start script has to take from these variables';
  return '';
}
