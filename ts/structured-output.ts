import { checkKnownKeys, checkObject, checkOneOf, checkString } from './checks';
import { CapstanError } from './errors';
import { type GrammarPlan, jsonKey, type PlannedSource } from './grammar-cache';
import { choice, type GrammarExpr, literal } from './text/grammar';
import { jsonObjectGrammar, schemaToGrammar } from './text/json-schema';

/**
 * A constraint on the generated text, enforced token by token at any temperature:
 *
 * - `json`: a JSON value that matches `schema`; without a schema any JSON object.
 *   `docs/reference/structured-output.md` lists the supported keywords of JSON Schema.
 * - `regex`: a text that the whole pattern matches, in ECMAScript syntax without lookaround and backreferences.
 * - `choice`: one of up to 10,000 texts ({@link MAX_STRUCTURED_CHOICES}).
 * - `grammar`: a text of a GBNF grammar (the format of llama.cpp), starting at its rule `root`.
 */
export type StructuredOutput =
  | { type: 'json'; schema?: Readonly<Record<string, unknown>> | boolean }
  | { type: 'regex'; pattern: string }
  | { type: 'choice'; choices: readonly string[] }
  | { type: 'grammar'; grammar: string };

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
  if (schema === undefined) return { key: 'json', source: () => ({ kind: 'rules', ...jsonObjectGrammar() }), param };
  if (typeof schema !== 'boolean') checkObject(param, schema);
  return {
    key: `json ${jsonKey(param, schema)}`,
    source: () => ({ kind: 'rules', ...schemaToGrammar(schema) }),
    param,
  };
}

function planRegex(fields: Fields): GrammarPlan {
  checkKnownKeys('structuredOutput', fields, ['type', 'pattern']);
  const param = 'structuredOutput.pattern';
  const pattern = checkText(param, fields.pattern);
  return { key: `regex ${pattern}`, source: () => wholeRegex(pattern), param };
}

function wholeRegex(pattern: string): PlannedSource {
  const expr: GrammarExpr = {
    kind: 'regex',
    pattern,
    isSearch: false,
    isJsonString: false,
    minLength: 0,
    maxLength: null,
    label: 'regex',
  };
  return { kind: 'rules', root: 'root', rules: [{ name: 'root', expr, isPlain: true }] };
}

function planChoice(fields: Fields): GrammarPlan {
  checkKnownKeys('structuredOutput', fields, ['type', 'choices']);
  const { choices } = fields;
  const param = 'structuredOutput.choices';
  if (!Array.isArray(choices) || choices.length === 0 || choices.length > MAX_STRUCTURED_CHOICES)
    throw CapstanError.argument(param, `an array of 1 to ${MAX_STRUCTURED_CHOICES} strings`, choices);
  const texts = choices.map((text: unknown, i) => checkText(`${param}[${i}]`, text));
  const source = (): PlannedSource => ({
    kind: 'rules',
    root: 'root',
    rules: [{ name: 'root', expr: choice(...texts.map(literal)), isPlain: true }],
  });
  return { key: `choice ${JSON.stringify(texts)}`, source, param };
}

function planGbnf(fields: Fields): GrammarPlan {
  checkKnownKeys('structuredOutput', fields, ['type', 'grammar']);
  const param = 'structuredOutput.grammar';
  const text = checkText(param, fields.grammar);
  return { key: `gbnf ${text}`, source: () => ({ kind: 'gbnf', text }), param };
}

function checkText(param: string, value: unknown): string {
  if (checkString(param, value) === '') throw CapstanError.argument(param, 'at least one character', value);
  return value as string;
}
