/**
 * Cases for the grammar oracles: texts for each schema, with the verdicts of our grammar and of ajv.
 * Prints them as JSON when run: `node -r ./test/oracle/register-ts.cjs test/oracle/grammar-cases.ts > CASES.json`.
 */
import Ajv2020 from 'ajv/dist/2020';
import addFormats from 'ajv-formats';
import { loadAddon } from '../../ts/addon';
import { schemaToGrammar } from '../../ts/text/json-schema';
import { accepts, mutate, randomText } from '../native/grammar-texts';
import { SCHEMAS } from '../native/json-schema-cases';

const NUM_RANDOM = 12;

export interface GrammarCase {
  schema: unknown;
  texts: {
    text: string;
    /** Whether our grammar accepts the text. */
    ours: boolean;
    /** Whether the text is JSON that ajv accepts. */
    isValid: boolean;
  }[];
}

export async function grammarCases(): Promise<GrammarCase[]> {
  const ajv = new Ajv2020({ strict: false, allowUnionTypes: true, logger: false, multipleOfPrecision: 6 });
  addFormats(ajv);
  const addon = loadAddon();
  return Promise.all(
    SCHEMAS.map(async ({ schema, valid, invalid }) => {
      const grammar = await addon.compileGrammar({ kind: 'rules', ...schemaToGrammar(schema) });
      const validate = ajv.compile(schema as object);
      const isValid = (text: string) => {
        try {
          return validate(JSON.parse(text));
        } catch {
          return false;
        }
      };
      const texts = new Set<string>();
      for (const value of [...valid, ...invalid]) {
        texts.add(JSON.stringify(value));
        texts.add(JSON.stringify(value, null, 2));
        texts.add(mutate(JSON.stringify(value), texts.size));
      }
      for (let seed = 100; seed < 100 + NUM_RANDOM; seed++) {
        const text = randomText(grammar, seed, 50);
        texts.add(text);
        texts.add(mutate(text, seed));
      }
      return {
        schema,
        texts: [...texts].map((text) => ({ text, ours: accepts(grammar, text), isValid: isValid(text) })),
      };
    }),
  );
}

if (require.main === module) void grammarCases().then((cases) => process.stdout.write(JSON.stringify(cases)));
