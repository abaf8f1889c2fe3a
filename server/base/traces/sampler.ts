import { UsageError } from '../usage-error';
import type { ParentSpan } from './span';

/** Whether the spans of a trace are recorded. */
export type Sampler = (traceId: string, parent: ParentSpan | undefined) => boolean;

const ROOT_SAMPLERS = ['always_on', 'always_off', 'traceidratio'] as const;

/** Reads `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`. @throws UsageError for other values. */
export function samplerOf(env: NodeJS.ProcessEnv): Sampler {
  const name = env.OTEL_TRACES_SAMPLER || 'parentbased_always_on';
  const isParentBased = name.startsWith('parentbased_');
  const root = ROOT_SAMPLERS.find((candidate) => candidate === name.replace('parentbased_', ''));
  if (root === undefined)
    throw new UsageError(
      `OTEL_TRACES_SAMPLER: expected ${ROOT_SAMPLERS.join(', ')}, or one of them after parentbased_, got ${name}`,
    );
  const shares = { always_on: 1, always_off: 0, traceidratio: ratioOf(env.OTEL_TRACES_SAMPLER_ARG) };
  const share = shares[root];
  // The lower 56 bits of a trace id are random (W3C Trace Context, level 2).
  const samples = (traceId: string): boolean => parseInt(traceId.slice(-13), 16) < share * 2 ** 52;
  return (traceId, parent) => (isParentBased && parent !== undefined ? parent.isSampled : samples(traceId));
}

function ratioOf(text = '1'): number {
  const share = Number(text);
  if (!(share >= 0 && share <= 1) || text.trim() === '')
    throw new UsageError(`OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1, got ${text}`);
  return share;
}
