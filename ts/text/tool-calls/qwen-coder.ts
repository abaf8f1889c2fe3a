import { choice, type GrammarExpr, literal, oneOf, optional, repeat, sequence, without } from '../grammar';
import { constantsOf } from '../json-constants';
import type { SchemaRules } from '../json-schema';
import { shapedText } from '../json-strings';
import { unsupported } from '../schema-error';
import { counts, keywordBeside } from '../schema-keywords';
import { type Schema, type TypeName, TYPES } from '../schema-types';
import { argumentTypesOf, toArgument, typesAllowed } from './argument-types';
import type { CallSink, ToolCallFormat, GrammarTool } from './format';
import type { CallInput, CallReading } from './input';
import { escapeForJson } from './python-literal';

const [OPEN, CLOSE, FUNCTION, FUNCTION_CLOSE] = ['<tool_call>', '</tool_call>', '<function=', '</function>'];
const [PARAMETER, PARAMETER_CLOSE] = ['<parameter=', '</parameter>'];
const MAX_LOOSE_NAME = 64;
const MAX_NULL = 16;
const NAME = /^[^<>\n]$/;

/**
 * Qwen3-Coder: `<tool_call><function=NAME><parameter=KEY>` and the raw value. The schema of the tool gives its type.
 */
export const qwen3Coder: ToolCallFormat = {
  name: 'qwen3_coder',
  aliases: ['qwen3_xml', 'qwen3-coder'],
  matchesTemplate: (mentions) => mentions(OPEN) && mentions(FUNCTION) && mentions(PARAMETER),
  markers: [OPEN, CLOSE],
  callEnd: CLOSE,
  begins: (char) => char === '<',
  *read(input, sink) {
    const first = yield* input.oneOf(OPEN, ...(sink.isConstrained ? [] : [FUNCTION]));
    if (first === undefined) return false;
    if (first === OPEN) {
      yield* input.blanks();
      if (!(yield* input.literal(FUNCTION))) return false;
    }
    if (!(yield* readFunction(input, sink))) return false;
    if (first !== OPEN) return true;
    yield* input.blanks();
    return yield* input.literalOrEnd(CLOSE);
  },
  syntax: { before: '', between: '\n', after: '', call: xmlCall, open: OPEN, allowsTextAfterCalls: true },
};

function* readFunction(input: CallInput, sink: CallSink): CallReading {
  const name = yield* input.word(NAME);
  if (name === undefined || !sink.knows(name) || !(yield* input.literal('>'))) return false;
  sink.begin(name);
  const types = argumentTypesOf(sink.tools?.find((tool) => tool.function.name === name)?.function.parameters);
  for (let isFirst = true; ; isFirst = false) {
    yield* input.blanks();
    const tag = yield* input.oneOf(PARAMETER, FUNCTION_CLOSE);
    if (tag === undefined) return false;
    if (tag === FUNCTION_CLOSE) {
      if (!isFirst) sink.add('}');
      sink.finish();
      return true;
    }
    const key = yield* input.word(NAME);
    if (key === undefined || !(yield* input.literal('>'))) return false;
    sink.add(`${isFirst ? '{' : ', '}${JSON.stringify(key)}: `);
    if (!(yield* readArgument(input, sink, types(key)))) return false;
  }
}

/** Streams text. A value that may be of another type is converted when it is complete. */
function* readArgument(input: CallInput, sink: CallSink, types: readonly TypeName[]): CallReading {
  const isTextOrNull = types.every((type) => type === 'string' || type === 'null');
  /** undefined: the value is text, and all of it was emitted. */
  let held: string | undefined = '';
  const isComplete = yield* readRaw(input, (text) => {
    if (held === undefined) return sink.add(escapeForJson(text));
    held += text;
    if (!isTextOrNull || (types.includes('null') && mayBeNull(held))) return;
    sink.add(`"${escapeForJson(held)}`);
    held = undefined;
  });
  if (held === undefined) sink.add(isComplete ? '"' : '');
  else if (isComplete) sink.add(toArgument(held, types));
  else if (held !== '') sink.add(types.includes('string') ? `"${escapeForJson(held)}` : held);
  return isComplete;
}

/** Whether the start of a value may be that of null, with some blanks around. */
function mayBeNull(text: string): boolean {
  return text.length <= MAX_NULL && ['null', 'None'].some((word) => word.startsWith(text.trim()));
}

/** Reads the text before the closing marker, without one line break at either end. */
function* readRaw(input: CallInput, emit: (text: string) => void): CallReading {
  /** A line break before a possible marker, and the matched part of the marker. */
  let held = '';
  for (let numMatched = 0, isFirst = true; ; isFirst = false) {
    const char = yield* input.next();
    if (char === undefined) return false;
    if (char === PARAMETER_CLOSE[numMatched]) {
      held += char;
      if (++numMatched === PARAMETER_CLOSE.length) return true;
      continue;
    }
    if (isFirst && char === '\n') continue;
    // NOTE: the first character of the marker does not occur in the rest of it, so a new match can start only here.
    if (held !== '') emit(held);
    numMatched = char === PARAMETER_CLOSE[0] ? 1 : 0;
    held = numMatched > 0 || char === '\n' ? char : '';
    if (held === '') emit(char);
  }
}

function xmlCall({ name, hasFreeArguments, rules, rejectName }: GrammarTool): GrammarExpr {
  if (![...name].every((char) => NAME.test(char))) rejectName('a name without <, > or line breaks');
  const args = hasFreeArguments
    ? [repeat(looseArgument(), 0, null)]
    : rules.members('qwen3_coder').map((member) => {
        if (member.name === '' || ![...member.name].every((char) => NAME.test(char)))
          throw unsupported(member.path, 'qwen3_coder calls cannot write names with <, > or line breaks');
        const expr = sequence(
          `${PARAMETER}${member.name}>\n`,
          rawValue(rules, member.schema, member.path),
          literal(`\n${PARAMETER_CLOSE}\n`),
        );
        return member.isRequired ? expr : optional(expr);
      });
  return sequence(`${OPEN}\n${FUNCTION}${name}>\n`, ...args, literal(`${FUNCTION_CLOSE}\n${CLOSE}`));
}

function looseArgument(): GrammarExpr {
  const key = repeat(
    {
      kind: 'class',
      ranges: [
        [0x20, 0x3b],
        [0x3d, 0x3d],
        [0x3f, 0x7e],
        [0xa0, 0x10ffff],
      ],
    },
    1,
    MAX_LOOSE_NAME,
  );
  return sequence(PARAMETER, key, '>\n', without(PARAMETER_CLOSE), literal(`\n${PARAMETER_CLOSE}\n`));
}

/** Returns the grammar of a raw value that the reader converts to the same type: plain text for strings, else JSON. */
function rawValue(rules: SchemaRules, schema: Schema, path: string): GrammarExpr {
  const alternatives = rules
    .alternatives(schema, path)
    .map((alternative) => ({ ...alternative, types: typesAllowed(alternative.schema, {}) }));
  const types = TYPES.filter((type) => alternatives.some((alternative) => alternative.types.includes(type)));
  const exprs = alternatives.map((alternative) =>
    alternative.types.includes('string')
      ? rawText(alternative, types, rules.label)
      : rules.value(alternative.schema, alternative.path),
  );
  // Free text can look like a value of another alternative, so that alternative must allow every value of its type.
  const constrained = alternatives.find(
    (alternative) =>
      alternative.types.some((type) => type !== 'string') &&
      !isConstant(alternative.schema) &&
      !isBare(alternative.schema),
  );
  const hasFreeText = alternatives.some(
    (alternative) => alternative.types.includes('string') && !isConstant(alternative.schema),
  );
  if (hasFreeText && constrained !== undefined)
    throw unsupported(constrained.path, 'not supported by qwen3_coder calls as an alternative to text');
  return choice(...exprs);
}

function rawText(
  { schema, path }: { schema: Schema; path: string },
  types: readonly TypeName[],
  label: string,
): GrammarExpr {
  const values = constantsOf(schema, path);
  if (values?.length === 0) throw unsupported(path, 'no value matches');
  if (values !== undefined) return oneOf(values.map((value) => rawConstant(value, types, path)));
  const keyword = keywordBeside(schema, ['type', 'minLength', 'maxLength', 'pattern', 'format']);
  if (keyword !== undefined) throw unsupported(`${path}/${keyword}`, 'not supported by qwen3_coder calls for text');
  const shaped = shapedText(schema, path, label);
  // Without <, the value contains no tag.
  if (shaped !== null)
    return {
      ...shaped,
      isJsonString: false,
      also: [...(shaped.also ?? []), { pattern: '^[^<]*$', isSearch: true, label }],
    };
  const [min, max] = counts(schema, 'minLength', 'maxLength', path);
  if (min === 0 && max === null) return without(PARAMETER_CLOSE);
  return repeat(
    {
      kind: 'class',
      ranges: [
        [0, 0x3b],
        [0x3d, 0x10ffff],
      ],
    },
    min,
    max,
  );
}

function rawConstant(value: unknown, types: readonly TypeName[], path: string): GrammarExpr {
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  if (text.includes(PARAMETER_CLOSE) || text.startsWith('\n') || toArgument(text, types) !== JSON.stringify(value)) {
    throw unsupported(path, `qwen3_coder calls cannot write the constant ${JSON.stringify(value).slice(0, 80)}`);
  }
  return literal(text);
}

function isConstant(schema: Schema): boolean {
  return 'enum' in schema || 'const' in schema;
}

function isBare(schema: Schema): boolean {
  return keywordBeside(schema, ['type']) === undefined;
}
