/**
 * Checks the corpus of schemas: which ones the grammar refuses, and whether random texts of the others are valid.
 * Checks 200 texts of each schema when run: `node -r ./test/oracle/register-ts.cjs test/oracle/schemas/check.ts`.
 */
import { readFileSync } from 'node:fs';
import path from 'node:path';
import Ajv, { type ValidateFunction } from 'ajv';
import Ajv2020 from 'ajv/dist/2020';
import addFormats from 'ajv-formats';
import { loadAddon } from '../../../ts/addon';
import { CapstanError } from '../../../ts/errors';
import { buildGrammarSource } from '../../../ts/text/grammar-source';
import { randomText } from '../../native/grammar-texts';

interface Package {
  /** `npm:` or `pypi:` and the name. */
  source: string;
  version: string;
  license: string;
  /** By the name of the tool, type or file. */
  schemas: Record<string, Record<string, unknown>>;
}

export const CORPUS = JSON.parse(readFileSync(path.join(__dirname, 'corpus.json'), 'utf8')) as Package[];

export interface CorpusReport {
  numSchemas: number;
  numTexts: number;
  /** Messages by package and name. */
  refused: Record<string, string>;
  /** Schemas that ajv cannot compile. */
  unchecked: string[];
  invalid: string[];
}

/** Compiles every schema and checks `numTexts` random texts of each against ajv. */
export async function checkCorpus(numTexts: number): Promise<CorpusReport> {
  const report: CorpusReport = { numSchemas: 0, numTexts: 0, refused: {}, unchecked: [], invalid: [] };
  for (const { source, schemas } of CORPUS) {
    for (const [name, schema] of Object.entries(schemas)) {
      report.numSchemas++;
      await checkSchema(`${source} ${name}`, schema, numTexts, report);
    }
  }
  return report;
}

async function checkSchema(
  name: string,
  schema: Record<string, unknown>,
  numTexts: number,
  report: CorpusReport,
): Promise<void> {
  let grammar;
  try {
    grammar = await loadAddon().compileGrammar(buildGrammarSource({ kind: 'json', schema }));
  } catch (error) {
    report.refused[name] = CapstanError.from(error).message;
    return;
  }
  const validate = validator(schema);
  if (validate === undefined) {
    report.unchecked.push(name);
    return;
  }
  for (let seed = 1; seed <= numTexts; seed++) {
    const text = randomText(grammar, seed, 60);
    report.numTexts++;
    if (!validate(JSON.parse(text))) report.invalid.push(`${name}: seed ${seed}: ${text}`);
  }
}

/** Returns undefined for keywords of draft-04, which ajv does not know. */
function validator(schema: Record<string, unknown>): ValidateFunction | undefined {
  // A list in `items` is a keyword of the older drafts.
  const isOld = /draft-0[467]/.test(String(schema.$schema)) || JSON.stringify(schema).includes('"items":[');
  // Some patterns are valid only without the flag `u`. Decimal steps are not exact in binary.
  for (const unicodeRegExp of [true, false]) {
    const options = {
      strict: false,
      unicodeRegExp,
      multipleOfPrecision: 6,
      logger: false,
      validateSchema: false,
    } as const;
    const ajv = isOld ? new Ajv(options) : new Ajv2020(options);
    addFormats(ajv);
    try {
      return ajv.compile(structuredClone(schema));
    } catch {
      // Tries the other flag.
    }
  }
  return undefined;
}

if (require.main === module) {
  void checkCorpus(200).then(({ refused, invalid, unchecked, numSchemas, numTexts }) => {
    for (const [name, message] of Object.entries(refused)) console.log(`refused: ${name}: ${message}`);
    for (const name of unchecked) console.log(`not checked: ${name}`);
    for (const text of invalid) console.log(`invalid: ${text}`);
    console.log(`${numSchemas} schemas, ${numTexts} texts, ${invalid.length} invalid`);
    process.exitCode = invalid.length > 0 ? 1 : 0;
  });
}
