import { CapstanError } from '../../errors';
import { choice, type Grammar, type GrammarExpr, literal, optional, repeat, rule, sequence, without } from '../grammar';
import { addJsonRules, JSON_DIALECT } from '../json-rules';
import { SchemaRules } from '../json-schema';
import type { Tool } from '../messages';
import { unsupported } from '../schema-error';
import { asSchema, type Schema } from '../schema-merge';
import { SchemaWork } from '../schema-work';
import type { ToolCallFormat, WrittenCalls } from './format';
import { textWithoutBeginning } from './free-text';

export interface ToolCallGrammarOptions {
  /** `required`: the text is calls. `strict`: free text, too, before and around calls. */
  mode: 'required' | 'strict';
  /** The one tool that may be called. */
  only?: string;
  /** False: at most one call. */
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
 * The grammar of a text with tool calls as the format writes them, so that its reader finds them again: arguments keep to the schemas of the tools. In `strict` mode those
 * of tools that are not `strict` may be anything. A text that begins as the calls of a format without markers do is calls.
 * @throws CapstanError `invalid_argument` naming the tool and the place in its schema.
 */
export function toolCallGrammar(
  format: ToolCallFormat,
  tools: readonly Tool[],
  { mode, only, parallel }: ToolCallGrammarOptions,
): Grammar {
  const grammar: Grammar = { root: 'root', rules: [] };
  const { written } = format;
  const allowed = tools.flatMap((tool, i) => (only === undefined || tool.function.name === only ? [{ tool, i }] : []));
  if (allowed.length === 0)
    throw CapstanError.argument(
      'toolChoice',
      only === undefined ? 'at least one tool' : 'the name of one of the tools',
      only,
    );
  const work = new SchemaWork();
  const calls = choice(
    ...allowed.map(({ tool, i }) =>
      writeCall(format, grammar, work, tool, i, mode === 'strict' && tool.function.strict !== true),
    ),
  );
  const isSingle = only !== undefined || !parallel;
  grammar.rules.unshift(
    { name: 'root', expr: mode === 'required' ? requiredCalls(written, isSingle) : callsInText(written, isSingle) },
    { name: CALL, expr: calls },
  );
  addJsonRules(grammar, written.dialect ?? JSON_DIALECT);
  return grammar;
}

function writeCall(
  { name: format, written }: ToolCallFormat,
  grammar: Grammar,
  work: SchemaWork,
  tool: Tool,
  i: number,
  isLoose: boolean,
): GrammarExpr {
  const param = `tools[${i}].function.parameters`;
  try {
    const { name, parameters } = tool.function;
    const rules = new SchemaRules(grammar, isLoose ? ANY_ARGUMENTS : argumentsSchema(parameters), {
      namespace: `tool ${i} `,
      label: param,
      work,
      ...(written.dialect === undefined ? {} : { dialect: written.dialect }),
    });
    return written.call({
      name,
      isLoose,
      rules,
      json: () => rules.whole(),
      refuseName: (expected) => {
        throw CapstanError.argument(`tools[${i}].function.name`, `${expected}, as ${format} calls write it`, name);
      },
    });
  } catch (error) {
    throw error instanceof CapstanError && error.param === 'schema' ? atTool(error, param) : error;
  }
}

/** Arguments are an object. No parameters, or a list of none, are none. */
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

function atTool({ expected = '', received = '' }: CapstanError, param: string): CapstanError {
  return new CapstanError('invalid_argument', `${param}: ${received}: ${expected}`, { param, expected, received });
}

function requiredCalls(written: WrittenCalls, isSingle: boolean): GrammarExpr {
  const calls = allCalls(written, isSingle);
  return written.bare === undefined ? calls : choice(calls, markedCalls(written, isSingle));
}

/** Free text anywhere; what begins as a call is one. */
function callsInText(written: WrittenCalls, isSingle: boolean): GrammarExpr {
  const { open, isAmongText, bare } = written;
  const text = without(open);
  if (bare !== undefined)
    return choice(
      allCalls(written, isSingle),
      sequence(textWithoutBeginning(open, bare.first), optional(markedCalls(written, isSingle))),
    );
  if (!isAmongText) return sequence(text, optional(allCalls(written, isSingle)));
  return isSingle ? sequence(text, optional(rule(CALL))) : sequence(text, repeat(sequence(rule(CALL), text), 0, null));
}

function allCalls({ before, between, after }: WrittenCalls, isSingle: boolean): GrammarExpr {
  return sequence(before, rule(CALL), ...(isSingle ? [] : [repeat(sequence(between, rule(CALL)), 0, null)]), after);
}

function markedCalls(written: WrittenCalls, isSingle: boolean): GrammarExpr {
  return sequence(literal(written.open), allCalls(written, isSingle), literal(written.bare?.close ?? ''));
}
