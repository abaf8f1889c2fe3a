import { choice, type GrammarExpr, literal, oneOf } from '../grammar';
import { constantsOf } from '../json-constants';
import type { SchemaRules } from '../json-schema';
import { plainText } from '../json-strings';
import { unsupported } from '../schema-error';
import { keywordBeside } from '../schema-keywords';
import { type Schema, type TypeName, TYPES } from '../schema-types';
import { toArgument, typesAllowed } from './argument-types';
import type { CallSink } from './format';
import type { CallInput, Reading } from './input';
import { escapeForJson } from './python-literal';
import { TextBuffer } from './text-buffer';

const MAX_NULL = 16;

/** How a format writes the values of arguments without quotes: plain text for strings, else JSON. */
export interface RawValues {
  /** Name of the format, for errors. */
  format: string;
  /** Ends a value. NOTE: its first character must not occur in the rest of it. */
  close: string;
  /** One line break at either end of a value does not belong to it. */
  hasBreaks: boolean;
  /** Markers of a call whose end also ends a value without its closing marker. Default: none does. */
  call?: CallMarkers;
}

interface CallMarkers {
  open: string;
  close: string;
}

/** What ended a value; undefined: the text is over. */
type ValueEnd = 'value' | 'call' | undefined;

/** Streams text. A value that may be of another type is converted when it is complete. */
export function* readRawValue(
  input: CallInput,
  sink: CallSink,
  types: readonly TypeName[],
  values: RawValues,
): Reading<ValueEnd> {
  const isTextOrNull = types.every((type) => type === 'string' || type === 'null');
  /** undefined: the value is text, and all of it was emitted. */
  let held: string | undefined = '';
  // A grammar guarantees the closing marker.
  const end = yield* readRaw(input, sink.isConstrained ? { ...values, call: undefined } : values, (text) => {
    if (held === undefined) return sink.add(escapeForJson(text));
    held += text;
    if (!isTextOrNull || (types.includes('null') && mayBeNull(held))) return;
    sink.add(`"${escapeForJson(held)}`);
    held = undefined;
  });
  const isComplete = end !== undefined;
  if (held === undefined) sink.add(isComplete ? '"' : '');
  else if (isComplete) sink.add(toArgument(held, types));
  else if (held !== '') sink.add(types.includes('string') ? `"${escapeForJson(held)}` : held);
  return end;
}

/** Whether the start of a value may be that of null, with some blanks around. */
function mayBeNull(text: string): boolean {
  return text.length <= MAX_NULL && ['null', 'None'].some((word) => word.startsWith(text.trim()));
}

/** Reads the text before the closing marker. */
function* readRaw(
  input: CallInput,
  { close, hasBreaks, call }: RawValues,
  emit: (text: string) => void,
): Reading<ValueEnd> {
  const ends = call === undefined ? [close] : [close, call.close];
  /** A line break before a possible marker. */
  let lineBreak = '';
  let matched = '';
  for (let isFirst = true; ; isFirst = false) {
    const char = yield* input.next();
    if (char === undefined) return undefined;
    const start = matched + char;
    if (ends.some((end) => end.startsWith(start))) {
      matched = start;
      if (matched === close) emit(hasBreaks ? '' : lineBreak);
      if (matched === close) return 'value';
      if (call === undefined || matched !== call.close) continue;
      const rest = yield* readThrough(input, [close, call.open]);
      if (rest.endsWith(close)) {
        emit(lineBreak + matched + rest.slice(0, -close.length));
        return 'value';
      }
      // The rest of a completion that is cut may lack the closing marker.
      if (input.isCut) return undefined;
      input.unskip(rest);
      return 'call';
    }
    if (hasBreaks && isFirst && char === '\n') continue;
    // NOTE: the first character of the marker does not occur in the rest of it, so a new match can start only here.
    emit(lineBreak + matched);
    lineBreak = char === '\n' && (hasBreaks || call !== undefined) ? char : '';
    matched = char === close[0] ? char : '';
    if (lineBreak + matched === '') emit(char);
  }
}

/** Reads up to the end of the first of some markers, or all text. */
function* readThrough(input: CallInput, markers: readonly string[]): Reading<string> {
  const longest = Math.max(...markers.map((marker) => marker.length));
  const text = new TextBuffer();
  for (let last = ''; !markers.some((marker) => last.endsWith(marker));) {
    const char = yield* input.next();
    if (char === undefined) break;
    text.add(char);
    last = (last + char).slice(-longest);
  }
  return text.toString();
}

/** Returns the grammar of a raw value that the reader converts to the same type: plain text for strings, else JSON. */
export function rawValue(values: RawValues, rules: SchemaRules, schema: Schema, path: string): GrammarExpr {
  const alternatives = rules
    .alternatives(schema, path)
    .map((alternative) => ({ ...alternative, types: typesAllowed(alternative.schema, {}) }));
  const types = TYPES.filter((type) => alternatives.some((alternative) => alternative.types.includes(type)));
  const exprs = alternatives.map((alternative) =>
    alternative.types.includes('string')
      ? rawText(values, alternative, types, rules.label)
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
    throw unsupported(constrained.path, `not supported by ${values.format} calls as an alternative to text`);
  return choice(...exprs);
}

function rawText(
  { format, close, hasBreaks }: RawValues,
  { schema, path }: { schema: Schema; path: string },
  types: readonly TypeName[],
  label: string,
): GrammarExpr {
  const constants = constantsOf(schema, path);
  if (constants?.length === 0) throw unsupported(path, 'no value matches');
  if (constants !== undefined)
    return oneOf(constants.map((value) => rawConstant({ format, close, hasBreaks }, value, types, path)));
  const keyword = keywordBeside(schema, ['type', 'minLength', 'maxLength', 'pattern', 'format']);
  if (keyword !== undefined) throw unsupported(`${path}/${keyword}`, `not supported by ${format} calls for text`);
  return plainText(schema, path, label, close);
}

function rawConstant(
  { format, close, hasBreaks }: RawValues,
  value: unknown,
  types: readonly TypeName[],
  path: string,
): GrammarExpr {
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  const isClipped = hasBreaks && text.startsWith('\n');
  if (text.includes(close) || isClipped || toArgument(text, types) !== JSON.stringify(value)) {
    throw unsupported(path, `${format} calls cannot write the constant ${JSON.stringify(value).slice(0, 80)}`);
  }
  return literal(text);
}

function isConstant(schema: Schema): boolean {
  return 'enum' in schema || 'const' in schema;
}

function isBare(schema: Schema): boolean {
  return keywordBeside(schema, ['type']) === undefined;
}
