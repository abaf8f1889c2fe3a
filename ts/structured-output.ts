import { checkKnownKeys, checkObject, checkOneOf, checkString } from './checks';
import { CapstanError } from './errors';
import { type GrammarPlan, keyOf, type PlannedSource } from './grammar-cache';
import { choice, type GrammarExpr, literal } from './text/grammar';
import { jsonObjectGrammar, schemaToGrammar } from './text/json-schema';

/**
 * What a text is held to while it is generated, at any temperature:
 *
 * - `json`: a JSON text that matches `schema`; without a schema any JSON object. What of JSON Schema is supported stands at `schemaToGrammar`.
 * - `regex`: a text that the whole pattern matches, in ECMAScript's syntax without lookaround and back references.
 * - `choice`: one of the texts.
 * - `grammar`: a text of a GBNF grammar (llama.cpp's format), from its rule `root`.
 */
export type StructuredOutput =
  | { type: 'json'; schema?: Readonly<Record<string, unknown>> | boolean }
  | { type: 'regex'; pattern: string }
  | { type: 'choice'; choices: readonly string[] }
  | { type: 'grammar'; grammar: string };

export const MAX_STRUCTURED_CHOICES = 10_000;

/** @throws CapstanError `invalid_argument` naming the field; faults inside a schema, pattern or grammar show when it is compiled. */
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
  return { key: `json ${keyOf(param, schema)}`, source: () => ({ kind: 'rules', ...schemaToGrammar(schema) }), param };
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
