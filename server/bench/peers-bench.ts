import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { UsageError } from '../base/usage-error';
import { type BenchReport, renderTable, type Table } from './bench-report';
import { describeMachine, machineText } from './machine';
import { type OutputOptions, writeOutput } from './output';

export interface PeersBenchOptions extends OutputOptions {
  /** Folder of compare.py. Default: benchmarks/peers of the clone. */
  dir: string | undefined;
  /** What the models of the peers have. */
  weights: 'bf16' | 'int8' | 'int4';
  checkpoint: string;
  gguf: string;
  openvino: string;
  rounds: number;
  threads: number;
  countsCpuTime: boolean;
}

/** What compare.py writes with `--json`. */
interface Comparison {
  peers: Record<string, string>;
  /** The median of the rounds for each peer, in tokens per second, and the limit. */
  rows: { work: string; speeds: Record<string, number>; limit: number }[];
}

interface Peer {
  name: string;
  /** Run in the folder of compare.py. */
  command: string;
  /** Why the peer cannot run, and what to do. */
  missing: string[];
}

const CLONE_DIR = join(__dirname, '../../../benchmarks/peers');

/** Compares the engine with the installed peers. Returns the exit code. @throws UsageError if there is none */
export async function peersBench(options: PeersBenchOptions): Promise<number> {
  const dir = options.dir ?? CLONE_DIR;
  const needed = neededFiles(dir, options);
  const peers = findPeers(dir, options);
  const available = peers.filter(({ missing }) => missing.length === 0);
  for (const { name, missing } of peers)
    if (missing.length > 0) process.stderr.write(`without ${name}: ${missing.join('; ')}\n`);
  if (needed.length > 0) throw new UsageError(`bench peers: ${needed.join('; ')}`);
  if (available.length === 0) throw new UsageError('bench peers: expected at least one peer, got none');
  const capstan = { name: 'capstan', command: quoted(capstanCommand(options)) };
  const comparison = await compare(dir, [...available, capstan], options);
  if (comparison === undefined) return 1;
  const table = peersTable(comparison);
  const report: BenchReport = {
    title: 'Comparison with other engines',
    facts: [
      ['Machine', machineText()],
      ['Settings', `${options.weights}, ${options.threads} threads, median of ${options.rounds} rounds`],
      ...Object.entries(comparison.peers),
    ],
    tables: [table],
    plots: [],
  };
  writeOutput(options, { text: renderTable(table), json: { ...comparison, machine: describeMachine() }, report });
  return 0;
}

function capstanCommand({ weights, checkpoint }: PeersBenchOptions): string[] {
  const quantization = weights === 'bf16' ? [] : ['--quantization', weights];
  return [process.execPath, 'capstan_peer.mjs', ...quantization, checkpoint];
}

/** What every comparison needs. */
function neededFiles(dir: string, { checkpoint }: PeersBenchOptions): string[] {
  const limits = join(dir, '../../build/benchmarks/ops');
  return [
    ...missingFile(join(dir, 'compare.py'), 'run the command in a clone of Capstan, or name the folder with --dir'),
    ...missingFile(limits, 'build it with: make -C benchmarks'),
    ...missingFile(checkpoint, 'write the model with make_model.py, or name it with --checkpoint'),
    ...missingProgram('python3', []),
  ];
}

function findPeers(dir: string, { gguf, openvino }: PeersBenchOptions): Peer[] {
  const peer = (name: string, environment: string, module: string, script: string, model: string, flag: string) => {
    const python = join(dir, environment, 'bin/python');
    const install = missingFile(python, `install ${name} as benchmarks/peers/README.md says`);
    return {
      name,
      command: quoted([python, script, model]),
      missing: [
        ...(install.length > 0 ? install : missingProgram(python, ['-c', `import ${module}`])),
        ...missingFile(model, `write the model as benchmarks/peers/README.md says, or name it with ${flag}`),
      ],
    };
  };
  return [
    peer('llama.cpp', 'L', 'llama_cpp', 'llama_peer.py', gguf, '--gguf'),
    peer('OpenVINO', 'O', 'openvino_genai', 'openvino_genai_peer.py', openvino, '--openvino'),
  ];
}

function missingFile(path: string, advice: string): string[] {
  return existsSync(path) ? [] : [`${path} does not exist: ${advice}`];
}

function missingProgram(program: string, args: readonly string[]): string[] {
  const { status, stderr, error } = spawnSync(program, args.length > 0 ? args : ['--version'], { encoding: 'utf8' });
  if (status === 0) return [];
  const reason = error?.message ?? stderr.trim().split('\n').at(-1) ?? '';
  return [`${program} does not run: ${reason}`];
}

/** Quotes words for Python's shlex. */
function quoted(words: readonly string[]): string {
  return words.map((word) => `'${word.replaceAll("'", `'"'"'`)}'`).join(' ');
}

/** Runs compare.py, whose progress goes to standard error. Returns undefined if it fails. */
async function compare(
  dir: string,
  peers: readonly Pick<Peer, 'name' | 'command'>[],
  { weights, rounds, threads, countsCpuTime }: PeersBenchOptions,
): Promise<Comparison | undefined> {
  const folder = mkdtempSync(join(tmpdir(), 'capstan-peers-'));
  try {
    const file = join(folder, 'result.json');
    const args = [
      'compare.py',
      '--weights',
      weights,
      '--rounds',
      String(rounds),
      '--threads',
      String(threads),
      '--json',
      file,
    ];
    const child = spawn(
      'python3',
      [...args, ...(countsCpuTime ? ['--cpu-time'] : []), ...peers.map(({ name, command }) => `${name}=${command}`)],
      { cwd: dir, stdio: ['ignore', 'ignore', 'inherit'] },
    );
    const code = await new Promise<number | null>((resolve, reject) => child.on('error', reject).on('close', resolve));
    return code === 0 ? (JSON.parse(readFileSync(file, 'utf8')) as Comparison) : undefined;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function peersTable({ peers, rows }: Comparison): Table {
  const names = Object.keys(peers);
  return {
    title: 'Tokens per second',
    columns: ['work', ...names, 'limit', 'capstan : best peer', '% of limit'],
    rows: rows.map(({ work, speeds, limit }) => {
      const best = Math.max(...names.filter((name) => name !== 'capstan').map((name) => speeds[name]));
      return [work, ...names.map((name) => speeds[name]), limit, speeds.capstan / best, (100 * speeds.capstan) / limit];
    }),
  };
}
