import type { EngineStats } from '../../ts';
import type { Table } from './bench-report';

/** Where the time of a run goes. The parts add up to the run. */
export interface Profile {
  numSteps: number;
  /** Tokens of all steps: prompts and completions. */
  numTokens: number;
  parts: { name: string; us: number }[];
}

/** Returns the profile of the steps between two statistics of an engine. */
export function profileOf(before: EngineStats, after: EngineStats, durationS: number): Profile {
  const spent = (name: keyof EngineStats['allSteps']) => after.allSteps[name] - before.allSteps[name];
  const parts = [
    { name: 'schedule and launch', us: spent('scheduleUs') },
    { name: 'model and sampling', us: spent('forwardUs') },
    { name: 'text, stop conditions and blocks', us: spent('settleUs') },
  ];
  const rest = durationS * 1e6 - parts.reduce((sum, { us }) => sum + us, 0);
  return {
    numSteps: after.numSteps - before.numSteps,
    numTokens: spent('numTokens'),
    parts: [...parts, { name: 'between the steps', us: Math.max(0, rest) }],
  };
}

export function profileTable({ numSteps, numTokens, parts }: Profile): Table {
  const total = parts.reduce((sum, { us }) => sum + us, 0);
  const row = (name: string, us: number): [string, number, number] => [name, us / numSteps, (100 * us) / total];
  return {
    title: `Time of a step: mean of ${numSteps} steps with ${(numTokens / numSteps).toFixed(1)} tokens each`,
    columns: ['part', 'µs per step', '%'],
    rows: [...parts.map(({ name, us }) => row(name, us)), row('together', total)],
  };
}
