import type { Command } from 'commander';
import type { MachineInfo } from '../../../ts';
import { formatBytes } from '../../base/bytes';
import { packageVersion } from '../../base/version';
import { counted } from '../../base/words';
import { type CommandIo, PROCESS_IO } from './io';

/** Adds `capstan doctor`. @param onExit Receives the exit code: 1 if no model can run. */
export function addDoctorCommand(program: Command, onExit: (code: number) => void, io: CommandIo = PROCESS_IO): void {
  program
    .command('doctor')
    .description('show the hardware of this machine, what Capstan uses of it, and why it does not use more')
    .option('--json', 'print JSON')
    .action(async ({ json = false }: { json?: boolean }) => {
      const { machineInfo } = await import('../../../ts/index.js');
      const info = machineInfo();
      const report = { capstan: packageVersion(), ...info };
      io.out(json ? `${JSON.stringify(report)}\n` : describe(report));
      onExit(info.problem === undefined ? 0 : 1);
    });
}

function describe(info: MachineInfo & { capstan: string }): string {
  const { platform, glibc, cpu, numThreads, isas, missingIsas, memoryBytes, availableBytes, gpus, problem } = info;
  const [best = 'none', ...others] = isas;
  const rows: [string, string][] = [
    ['Capstan', info.capstan],
    ['Node', info.node],
    ['Platform', `${platform}${glibc === undefined ? '' : `, glibc ${glibc}`}`],
    ['CPU', `${cpu}, ${counted(numThreads, 'thread')}`],
    ['Instruction set', `${best}${others.length === 0 ? '' : ` (also ${others.join(', ')})`}`],
    ...(missingIsas.length === 0 || problem !== undefined
      ? []
      : [['', `this CPU lacks ${missingIsas.join(', ')}`] as [string, string]]),
    ['Memory', `${formatBytes(availableBytes)} of ${formatBytes(memoryBytes)} available`],
    ['GPUs', gpus.length === 0 ? 'none' : gpus.map(({ name }) => name).join(', ')],
    ['CUDA backend', info.cudaLibrary ?? 'not built'],
    ['Models run on', problem === undefined ? 'the CPU' : 'nothing: the native addon does not load'],
  ];
  const width = Math.max(...rows.map(([name]) => name.length));
  const lines = rows.map(([name, value]) => `${name.padEnd(width)}  ${value}`.trimEnd());
  const notes = [...(problem === undefined ? [] : [problem]), ...info.notes];
  return `${[...lines, '', ...notes].join('\n')}\n`;
}
