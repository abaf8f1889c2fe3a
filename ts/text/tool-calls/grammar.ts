import { CapstanError } from '../../errors';
import { choice, type Grammar, type GrammarExpr, literal, optional, repeat, rule, sequence, without } from '../grammar';
import { addJsonRules, JSON_DIALECT } from '../json-rules';
import { SchemaRules } from '../json-schema';
import type { Tool } from '../messages';
import { unsupported } from '../schema-error';
import { asSchema } from '../schema-merge';
import type { Schema } from '../schema-types';
import { SchemaBudget } from '../schema-budget';
import type { ToolCallFormat, CallSyntax } from './format';
import { textNotStartingWith } from './free-text';

/** Options of {@link toolCallGrammar}. */
export interface ToolCallGrammarOptions {
  /**
   * - `required`: the text consists of calls.
   * - `chosen`: likewise, if the model chooses to call.
   * - `strict`: calls and free text may alternate.
   */
  mode: 'required' | 'chosen' | 'strict';
  /** The only tool that may be called. */
  only?: string;
  /** If false, at most one call. */
  parallel: boolean;
}

const CALL = 'call';
const NO_ARGUMENTS: Schema = { type: 'object', additionalProperties: false };
const ANY_ARGUMENTS: Schema = { type: 'object' };
const NO_ARGUMENT_KEYWORDS = [
  'additionalProperties',
  'patternProperties',
  'required',
  'minProperties',
  '$ref',
  'allOf',
  'anyOf',
  'oneOf',
  'enum',
  'const',
];

/**
 * Returns the grammar of a text with tool calls in the syntax of the format. Arguments match the schemas of the tools;
 * unless calls are required, arguments of tools that are not `strict` may be any object. If a format needs no marker, a
 * text that starts like its calls consists of calls.
 * @throws CapstanError `invalid_argument` that names the tool and the place in its schema.
 */
export function toolCallGrammar(
  format: ToolCallFormat,
  tools: readonly Tool[],
  { mode, only, parallel }: ToolCallGrammarOptions,
): Grammar {
  const grammar: Grammar = { root: 'root', rules: [] };
  const { syntax } = format;
  const allowed = tools.flatMap((tool, i) => (only === undefined || tool.function.name === only ? [{ tool, i }] : []));
  if (allowed.length === 0)
    throw CapstanError.argument(
      'toolChoice',
      only === undefined ? 'at least one tool' : 'the name of one of the tools',
      only,
    );
  const budget = new SchemaBudget();
  const calls = choice(
    ...allowed.map(({ tool, i }) =>
      writeCall(format, grammar, budget, tool, i, mode !== 'required' && tool.function.strict !== true),
    ),
  );
  const isSingle = only !== undefined || !parallel || syntax.isSingle === true;
  grammar.rules.unshift(
    { name: 'root', expr: (mode === 'strict' ? callsInText : onlyCalls)(syntax, isSingle) },
    { name: CALL, expr: calls },
  );
  addJsonRules(grammar, syntax.dialect ?? JSON_DIALECT);
  return grammar;
}

function writeCall(
  { name: format, syntax }: ToolCallFormat,
  grammar: Grammar,
  budget: SchemaBudget,
  tool: Tool,
  i: number,
  hasFreeArguments: boolean,
): GrammarExpr {
  const param = `tools[${i}].function.parameters`;
  try {
    const { name, parameters } = tool.function;
    const rules = new SchemaRules(grammar, hasFreeArguments ? ANY_ARGUMENTS : argumentsSchema(parameters), {
      namespace: `tool ${i} `,
      label: param,
      budget,
      ...(syntax.dialect === undefined ? {} : { dialect: syntax.dialect }),
    });
    return syntax.call({
      name,
      hasFreeArguments,
      rules,
      json: () => rules.root(),
      rejectName: (expected) => {
        throw CapstanError.argument(`tools[${i}].function.name`, `${expected} (tool call format ${format})`, name);
      },
    });
  } catch (error) {
    throw error instanceof CapstanError && error.param === 'schema' ? withToolParam(error, param) : error;
  }
}

/** Returns the schema of the arguments. Missing or empty parameters mean no arguments. */
function argumentsSchema(parameters: unknown): Schema {
  if (parameters === undefined || parameters === null) return NO_ARGUMENTS;
  const schema = asSchema(parameters, '#');
  const { type = 'object', properties } = schema;
  if (type !== 'object' && !(Array.isArray(type) && type.includes('object')))
    throw unsupported('#/type', 'expected "object": arguments are an object');
  const isEmpty = typeof properties === 'object' && properties !== null && Object.keys(properties).length === 0;
  return {
    ...schema,
    ...(isEmpty && !NO_ARGUMENT_KEYWORDS.some((key) => key in schema) ? NO_ARGUMENTS : {}),
    type: 'object',
  };
}

function withToolParam({ expected = '', received = '' }: CapstanError, param: string): CapstanError {
  return new CapstanError('invalid_argument', `${param}: ${received}: ${expected}`, { param, expected, received });
}

function onlyCalls(syntax: CallSyntax, isSingle: boolean): GrammarExpr {
  const calls = allCalls(syntax, isSingle);
  return syntax.unmarked === undefined ? calls : choice(calls, markedCalls(syntax, isSingle));
}

/** Free text and calls. Text that starts like a call must be one. */
function callsInText(syntax: CallSyntax, isSingle: boolean): GrammarExpr {
  const { open, allowsTextAfterCalls, unmarked } = syntax;
  if (syntax.withText !== undefined) return syntax.withText(allCalls(syntax, isSingle));
  const text = without(open);
  if (unmarked !== undefined)
    return choice(
      allCalls(syntax, isSingle),
      sequence(textNotStartingWith(open, unmarked.first), optional(markedCalls(syntax, isSingle))),
    );
  if (!allowsTextAfterCalls) return sequence(text, optional(allCalls(syntax, isSingle)));
  return isSingle ? sequence(text, optional(rule(CALL))) : sequence(text, repeat(sequence(rule(CALL), text), 0, null));
}

function allCalls({ before, between, after }: CallSyntax, isSingle: boolean): GrammarExpr {
  return sequence(before, rule(CALL), ...(isSingle ? [] : [repeat(sequence(between, rule(CALL)), 0, null)]), after);
}

function markedCalls(syntax: CallSyntax, isSingle: boolean): GrammarExpr {
  return sequence(literal(syntax.open), allCalls(syntax, isSingle), literal(syntax.unmarked?.close ?? ''));
}
