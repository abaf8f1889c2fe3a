import { SERVE_FLAGS } from 'capstan/internal';
import type { Isolation } from '../driver/driver';

/** Variables that the built-in runtime takes below level L2, besides those of its flags. */
const OF_THE_RUNTIME = /^(HF_.+|TZ|LANG|LC_.+|OMP_NUM_THREADS)$/;
/** Variables that change how Node.js, the dynamic linker or the shell load code. */
const LOADS_CODE = /^(NODE_.*|LD_.*|PATH)$/;
const OF_THE_SERVICE = /^(PLATFORM|CAPSTAN)_/;
/** The service decides how its replicas listen and who may call them. */
const GROUPS_OF_THE_SERVICE: readonly string[] = ['HTTP', 'Access keys'];
/** Flags whose value names a file or folder, which the runtime would read with the rights of the service. */
const NAMES_A_FILE = /^<(file|dir|path|source|adapters\.\.\.)>$/;
/** Those that a deployment may set where its replicas see only its own data. */
const WITHIN_THE_DATA = new Set(['CAPSTAN_LORA_MODULES']);

const FLAG_VARIABLES = new Set(
  SERVE_FLAGS.filter(
    ({ group, value }) => !GROUPS_OF_THE_SERVICE.includes(group) && !NAMES_A_FILE.test(value ?? ''),
  ).map(({ name }) => `CAPSTAN_${name.replaceAll('-', '_').toUpperCase()}`),
);

/** Its entries name models, draft models and other files. */
const MODEL_TABLE = 'CAPSTAN_MODELS';
/** Names a model if its value has this field. Its other values name no file. */
const SPECULATION = { variable: 'CAPSTAN_SPECULATIVE_CONFIG', field: 'model' };

/**
 * Returns why a deployment may not set a variable, or undefined if it may. Below level L2 a replica has the rights of
 * the service, so a variable must not make it load code or files.
 */
export function refusedVariable(
  [name, value]: readonly [name: string, value: string],
  startCommand: string | null,
  level: Isolation['level'],
): string | undefined {
  if (startCommand === null && level !== 'L2' && name === SPECULATION.variable && namesModel(value))
    return `it names a draft model, and replicas are not isolated here (level ${level})`;
  if (startCommand === null && level !== 'L2' && name === MODEL_TABLE)
    return `it names models and files, and replicas are not isolated here (level ${level})`;
  if (startCommand === null && FLAG_VARIABLES.has(name)) return undefined;
  if (startCommand === null && level === 'L2' && WITHIN_THE_DATA.has(name)) return undefined;
  if (OF_THE_SERVICE.test(name)) return 'the service sets it, or it loads code or files';
  if (level === 'L2') return undefined;
  if (startCommand !== null)
    return LOADS_CODE.test(name) ? `it loads code, and replicas are not isolated here (level ${level})` : undefined;
  return OF_THE_RUNTIME.test(name)
    ? undefined
    : `replicas are not isolated here (level ${level}), and the built-in runtime then takes only HF_*, TZ, LANG, LC_*, OMP_NUM_THREADS and CAPSTAN_ with a flag of capstan serve that names no file`;
}

/** Returns false for a value that is not valid: the runtime refuses it. */
function namesModel(value: string): boolean {
  try {
    const config: unknown = JSON.parse(value);
    return typeof config === 'object' && config !== null && SPECULATION.field in config;
  } catch {
    return false;
  }
}
