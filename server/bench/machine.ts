import os from 'node:os';

/** Describes this machine for the result file. */
export function describeMachine(): Record<string, unknown> {
  const cpus = os.cpus();
  return {
    cpu: cpus[0]?.model ?? 'unknown',
    cores: os.availableParallelism(),
    memory_gib: Math.round(os.totalmem() / 2 ** 30),
    platform: `${os.platform()} ${os.release()} ${os.arch()}`,
    node: process.version,
    load_average: os.loadavg().map((load) => Math.round(load * 100) / 100),
  };
}

/** Describes this machine in one line, for a report. */
export function machineText(): string {
  const { cpu, cores, memory_gib: memory, platform, node } = describeMachine();
  return `${String(cpu)}, ${String(cores)} cores, ${String(memory)} GiB, ${String(platform)}, Node.js ${String(node)}`;
}
