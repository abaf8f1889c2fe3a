import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { availableParallelism, cpus, totalmem } from 'node:os';
import { join } from 'node:path';
import { loadAddon } from './addon';
import { CapstanError } from './errors';
import { packageRoot } from './package-root';
import { glibcVersion } from './platform-package';

/** A GPU that the NVIDIA driver lists. */
export interface GpuInfo {
  /** Name of the product, as the driver writes it. */
  name: string;
  /** Undefined if the driver does not report it. */
  uuid: string | undefined;
}

/** What this machine has, and what an engine uses of it. */
export interface MachineInfo {
  /** Version of the native addon; undefined if it does not load. */
  version: string | undefined;
  /** Why the addon does not load, and what to do. */
  problem: string | undefined;
  /** `process.platform` and `process.arch`. */
  platform: string;
  /** Version of glibc; undefined with another C library. */
  glibc: string | undefined;
  /** Version of Node.js. */
  node: string;
  /** Model name of the first CPU. */
  cpu: string;
  /** Cores that CPU affinity and the control group allow. */
  numThreads: number;
  /** Instruction sets that an engine can use here, the best first. */
  isas: string[];
  /** Instruction sets that Capstan has for this architecture but this CPU lacks, the best first. */
  missingIsas: string[];
  /** Memory of the machine. */
  memoryBytes: number;
  /** Memory that this process can still allocate, its control group included. */
  availableBytes: number;
  /** The GPUs that the NVIDIA driver lists. */
  gpus: GpuInfo[];
  /** Path of the CUDA backend; undefined if it is not built. */
  cudaLibrary: string | undefined;
  /** What an engine with `device: 'auto'` uses. */
  device: 'cpu';
  /** Why the engine uses no GPU, and what to do. */
  notes: string[];
}

/** All instruction sets, the best first. */
const ISAS: Readonly<Record<string, readonly string[]>> = {
  x64: ['amx', 'avx512bf16', 'avx512vnni', 'avx512', 'avxvnni', 'avx2', 'portable'],
  arm64: ['neonbf16', 'neondot', 'neon', 'portable'],
};
const DRIVER_FOLDER = '/proc/driver/nvidia/gpus';

/** Describes this machine, for support and start-up logs. Does not throw if the addon does not load. */
export function machineInfo(): MachineInfo {
  const { version, isas, availableBytes, problem } = inspectAddon();
  const gpus = listGpus();
  const cudaLibrary = findCudaLibrary();
  return {
    version,
    problem,
    platform: `${process.platform}-${process.arch}`,
    glibc: glibcVersion(),
    node: process.version,
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    numThreads: availableParallelism(),
    isas,
    missingIsas: (ISAS[process.arch] ?? []).filter((isa) => !isas.includes(isa)),
    memoryBytes: totalmem(),
    availableBytes,
    gpus,
    cudaLibrary,
    device: 'cpu',
    notes: gpuNotes(gpus, cudaLibrary),
  };
}

function inspectAddon() {
  try {
    const addon = loadAddon();
    return {
      version: addon.version,
      isas: addon.isas,
      availableBytes: Math.min(addon.availableMemoryBytes(), totalmem()),
      problem: undefined,
    };
  } catch (error) {
    const { message } = CapstanError.from(error);
    return { version: undefined, isas: [] as string[], availableBytes: totalmem(), problem: message };
  }
}

/** Empty without the NVIDIA driver. */
function listGpus(): GpuInfo[] {
  try {
    return readdirSync(DRIVER_FOLDER).map((name) => {
      const text = readFileSync(join(DRIVER_FOLDER, name, 'information'), 'utf8');
      const field = (label: string): string | undefined =>
        new RegExp(`^${label}:\\s*(.+)$`, 'm').exec(text)?.[1].trim();
      return { name: field('Model') ?? name, uuid: field('GPU UUID') };
    });
  } catch {
    return [];
  }
}

function findCudaLibrary(): string | undefined {
  const chosen = process.env.CAPSTAN_CUDA_LIBRARY;
  const root = packageRoot();
  const paths = ['build/Release', 'build/cuda'].map((folder) => join(root, folder, 'capstan_cuda.so'));
  return [...(chosen === undefined || chosen === '' ? [] : [chosen]), ...paths].find((path) => existsSync(path));
}

function gpuNotes(gpus: readonly GpuInfo[], library: string | undefined): string[] {
  if (gpus.length === 0)
    return [
      existsSync(DRIVER_FOLDER)
        ? 'The NVIDIA driver lists no GPU, so models run on the CPU.'
        : 'No NVIDIA driver is loaded, so models run on the CPU.',
    ];
  if (library === undefined)
    return ['The CUDA backend is not built, so models run on the CPU. Build it in a clone with: npm run build:cuda'];
  return ["Models run on the CPU unless the device is 'cuda': choose it with --device cuda."];
}
