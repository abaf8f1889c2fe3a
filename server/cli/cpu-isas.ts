import type { EngineOptions } from '../../ts';

type CpuIsa = NonNullable<EngineOptions['isa']>;

/** NOTE: a record, so that a missing name does not compile. */
const NAMES: Readonly<Record<CpuIsa, true>> = {
  auto: true,
  portable: true,
  avx2: true,
  avxvnni: true,
  avx512: true,
  avx512vnni: true,
  avx512bf16: true,
  amx: true,
  neon: true,
  neondot: true,
  neonbf16: true,
};

/** Values of `--isa`. */
export const CPU_ISAS = Object.keys(NAMES) as CpuIsa[];
