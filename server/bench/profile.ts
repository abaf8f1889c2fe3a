import type { EngineStats, StepProfile } from '../../ts';
import type { MachineLimits } from '../../ts/benchmarks';
import type { Table } from './bench-report';

/** Where the time of a run goes. */
export interface Profile {
  /** Only kinds of steps that the run has. */
  steps: StepsProfile[];
  /** Of the run, outside the steps. */
  idleUs: number;
  /** The thread of JavaScript was busy, beside the steps. */
  javascriptUs: number;
  /** What the shares of the limit refer to: the fastest that a test of the machine or a part of a step has shown. */
  limits: Rates;
}

export interface StepsProfile {
  kind: string;
  numSteps: number;
  /** Of all steps: prompts and completions. */
  numTokens: number;
  us: number;
  /** They add up to `us`. Parts that took no time are left out. */
  parts: PartProfile[];
}

export interface PartProfile {
  name: string;
  us: number;
  /** Of `us`: threads waited for each other. */
  waitUs: number;
  /** The least possible time over the time, at most 1; null where bytes and operations are not known. */
  limitShare: number | null;
}

export interface Rates {
  readGbPerS: number;
  /** By number type of the products. */
  gopPerS: Record<string, number>;
}

/** Bytes and operations that a part must do. */
interface Work {
  us: number;
  bytes: number;
  ops: Record<string, number>;
}

/** Returns the fastest rates of several measurements of the machine, for the instructions that the engine uses. */
export function ratesOf(measured: readonly MachineLimits[], isa: string): Rates {
  const best = (rate: (limits: MachineLimits) => number) => Math.max(0, ...measured.map(rate));
  return {
    readGbPerS: best(({ reads }) => Math.max(...reads.map(({ gbPerS }) => gbPerS))),
    gopPerS: {
      f32: best(({ f32GflopPerS }) => f32GflopPerS),
      // Products of bf16 are those of f32 where that is faster, or where there is no other instruction.
      bf16: best((limits) =>
        Math.max(limits.f32GflopPerS, isa === 'amx' ? limits.amxBf16GflopPerS : limits.bf16GflopPerS),
      ),
      int8: best((limits) => (isa === 'amx' ? limits.amxInt8GopPerS : limits.int8GopPerS)),
    },
  };
}

/** Returns the profile of the steps between two statistics of an engine with the option `profile`. */
export function profileOf(
  { profile: before }: EngineStats,
  { profile: after }: EngineStats,
  { durationUs, rates, javascriptUs }: { durationUs: number; rates: Rates; javascriptUs: number },
): Profile {
  if (before === null || after === null) throw new Error('the engine has no profile: load it with `profile: true`');
  const works = after.kinds.map((_, kind) => after.parts.map((_name, part) => workOf(before, after, kind, part)));
  const limits = works.flat().reduce(including, rates);
  const spent = (name: 'numSteps' | 'numTokens' | 'stepUs', kind: number) => after[name][kind] - before[name][kind];
  const steps = after.kinds.map((name, kind) => ({
    kind: name,
    numSteps: spent('numSteps', kind),
    numTokens: spent('numTokens', kind),
    us: spent('stepUs', kind),
    parts: works[kind]
      .map((work, part) => {
        const at = kind * after.parts.length + part;
        const waitUs = after.waitUs[at] - before.waitUs[at];
        return { name: after.parts[part], us: work.us, waitUs, limitShare: limitShare(work, limits) };
      })
      .filter(({ us }) => us > 0),
  }));
  return {
    steps: steps.filter(({ numSteps }) => numSteps > 0),
    idleUs: Math.max(0, durationUs - steps.reduce((sum, { us }) => sum + us, 0)),
    javascriptUs,
    limits,
  };
}

function workOf(before: StepProfile, after: StepProfile, kind: number, part: number): Work {
  const at = kind * after.parts.length + part;
  const ops = after.math.map((name, math): [string, number] => [name, after.ops[math][at] - before.ops[math][at]]);
  return {
    us: after.partUs[at] - before.partUs[at],
    bytes: after.bytes[at] - before.bytes[at],
    ops: Object.fromEntries(ops),
  };
}

/** A part that is faster than the tests proves that the machine can be. So no part exceeds its limit. */
function including({ readGbPerS, gopPerS }: Rates, { us, bytes, ops }: Work): Rates {
  if (us <= 0) return { readGbPerS, gopPerS };
  const faster = Object.entries(ops).map(([math, count]): [string, number] => [
    math,
    Math.max(gopPerS[math], count / us / 1e3),
  ]);
  return { readGbPerS: Math.max(readGbPerS, bytes / us / 1e3), gopPerS: Object.fromEntries(faster) };
}

function limitShare({ us, bytes, ops }: Work, { readGbPerS, gopPerS }: Rates): number | null {
  const counts = Object.entries(ops).filter(([, count]) => count > 0);
  if (us <= 0 || (bytes === 0 && counts.length === 0)) return null;
  const computeUs = counts.reduce((sum, [math, count]) => sum + count / gopPerS[math] / 1e3, 0);
  const readUs = bytes === 0 ? 0 : bytes / readGbPerS / 1e3;
  return Math.min(1, Math.max(readUs, computeUs) / us);
}

/** One table for each kind of step, then one of the time outside the steps. */
export function profileTables({ steps, idleUs, javascriptUs }: Profile): Table[] {
  const all = steps.reduce((sum, { us }) => sum + us, 0);
  return [
    ...steps.map((kind) => stepsTable(kind)),
    {
      title: 'The run',
      columns: ['what', 'ms'],
      rows: [
        ...steps.map(({ kind, us }): [string, number] => [`steps: ${kind}`, us / 1e3]),
        ['steps together', all / 1e3],
        ['outside the steps', idleUs / 1e3],
        ['JavaScript, beside the steps', javascriptUs / 1e3],
      ],
    },
  ];
}

function stepsTable({ kind, numSteps, numTokens, us, parts }: StepsProfile): Table {
  const row = (name: string, part: { us: number; waitUs: number; limitShare: number | null }) => [
    name,
    part.us / numSteps,
    part.waitUs / numSteps,
    (100 * part.us) / us,
    part.limitShare === null ? '' : (100 * part.limitShare).toFixed(0),
  ];
  const waitUs = parts.reduce((sum, part) => sum + part.waitUs, 0);
  return {
    title: `A step of ${kind}: mean of ${numSteps} with ${(numTokens / numSteps).toFixed(1)} tokens each`,
    columns: ['part', 'µs', 'of it waiting', '% of the step', '% of the limit'],
    rows: [...parts.map((part) => row(part.name, part)), row('together', { us, waitUs, limitShare: null })],
  };
}
