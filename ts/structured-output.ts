import { checkKnownKeys, checkObject, checkOneOf, checkPlainSchema, checkString } from './checks';
import { CapstanError } from './errors';
import { type GrammarPlan, grammarPlan } from './grammar-cache';

/**
 * A constraint on the generated text, enforced token by token at any temperature:
 *
 * - `json`: a JSON value that matches `schema`; without a schema any JSON object.
 *   `docs/reference/structured-output.md` lists the supported keywords of JSON Schema.
 * - `regex`: a text that the whole pattern matches, in ECMAScript syntax without lookbehind and backreferences.
 * - `choice`: one of up to 10,000 texts ({@link MAX_STRUCTURED_CHOICES}).
 * - `grammar`: a text of a GBNF grammar (the format of llama.cpp), starting at its rule `root`.
 */
export type StructuredOutput =
  | {
      /** Kind of the constraint. */
      type: 'json';
      /** JSON Schema. Default: any object. */
      schema?: Readonly<Record<string, unknown>> | boolean;
    }
  | {
      /** Kind of the constraint. */
      type: 'regex';
      /** Regular expression, without slashes. */
      pattern: string;
    }
  | {
      /** Kind of the constraint. */
      type: 'choice';
      /** The texts to choose from. */
      choices: readonly string[];
    }
  | {
      /** Kind of the constraint. */
      type: 'grammar';
      /** Text of the GBNF grammar. */
      grammar: string;
    };

/** Maximum number of texts in a structured output of type `choice`. */
export const MAX_STRUCTURED_CHOICES = 10_000;

/**
 * Checks the fields. Faults inside a schema, pattern or grammar are found when it is compiled.
 * @throws CapstanError `invalid_argument` that names the field.
 */
export function planStructuredOutput(output: StructuredOutput): GrammarPlan {
  const fields = checkObject('structuredOutput', output);
  const type = checkOneOf('structuredOutput.type', fields.type, ['json', 'regex', 'choice', 'grammar']);
  switch (type) {
    case 'json':
      return planJson(fields);
    case 'regex':
      return planRegex(fields);
    case 'choice':
      return planChoice(fields);
    case 'grammar':
      return planGbnf(fields);
  }
}

type Fields = Record<string, unknown>;

function planJson(fields: Fields): GrammarPlan {
  checkKnownKeys('structuredOutput', fields, ['type', 'schema']);
  const { schema } = fields;
  const param = 'structuredOutput.schema';
  if (schema !== undefined && typeof schema !== 'boolean') checkPlainSchema(param, schema);
  return grammarPlan({ kind: 'json', ...(schema === undefined ? {} : { schema }) }, param);
}

function planRegex(fields: Fields): GrammarPlan {
  checkKnownKeys('structuredOutput', fields, ['type', 'pattern']);
  const param = 'structuredOutput.pattern';
  return grammarPlan({ kind: 'regex', pattern: checkText(param, fields.pattern) }, param);
}

function planChoice(fields: Fields): GrammarPlan {
  checkKnownKeys('structuredOutput', fields, ['type', 'choices']);
  const { choices } = fields;
  const param = 'structuredOutput.choices';
  if (!Array.isArray(choices) || choices.length === 0 || choices.length > MAX_STRUCTURED_CHOICES)
    throw CapstanError.argument(param, `an array of 1 to ${MAX_STRUCTURED_CHOICES} strings`, choices);
  return grammarPlan(
    { kind: 'choice', choices: choices.map((text: unknown, i) => checkText(`${param}[${i}]`, text)) },
    param,
  );
}

function planGbnf(fields: Fields): GrammarPlan {
  checkKnownKeys('structuredOutput', fields, ['type', 'grammar']);
  const param = 'structuredOutput.grammar';
  return grammarPlan({ kind: 'gbnf', text: checkText(param, fields.grammar) }, param);
}

function checkText(param: string, value: unknown): string {
  if (checkString(param, value) === '') throw CapstanError.argument(param, 'at least one character', value);
  return value as string;
}
