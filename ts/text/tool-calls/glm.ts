import { charClass, type GrammarExpr, literal, optional, repeat, sequence, without } from '../grammar';
import { unsupported } from '../schema-error';
import { argumentTypesOf } from './argument-types';
import type { CallPlace, CallSink, GrammarTool, ToolCallFormat } from './format';
import type { CallInput, CallReading } from './input';
import { type RawValues, rawValue, readRawValue } from './raw-values';

const NAME_CHAR = /^[^<>\n]$/u;
const MAX_LOOSE_NAME = 64;
/** Some versions break lines between the parts, and others do not. */
const BREAK = optional(literal('\n'));

/** GLM 4.5 to 4.7: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>` and the raw value. Its schema gives its type. */
export const glm45 = argumentFormat({
  name: 'glm45',
  aliases: ['glm47'],
  matchesTemplate: (mentions) => mentions('<tool_call>') && mentions('<arg_key>') && mentions('<arg_value>'),
  suffix: '',
});

/** Hunyuan 3: like GLM with a suffix in each tag, a tag after the name, and tags around all calls. */
export const hy3 = argumentFormat({
  name: 'hy3',
  aliases: [],
  matchesTemplate: (mentions) => mentions("'<tool_sep{}>'") && mentions("':opensource'"),
  suffix: ':opensource',
  list: 'tool_calls',
  separator: 'tool_sep',
});

interface ArgumentShape extends Pick<ToolCallFormat, 'name' | 'aliases' | 'matchesTemplate'> {
  /** Ends the name of each tag. */
  suffix: string;
  /** Name of the tag around all calls. */
  list?: string;
  /** Name of the tag after the name of the function. */
  separator?: string;
}

/** The tags of a format. '' is a tag that it does not have. */
interface Tags {
  listOpen: string;
  listClose: string;
  open: string;
  close: string;
  separator: string;
  key: string;
  keyClose: string;
  value: string;
  valueClose: string;
}

interface Parts {
  tags: Tags;
  values: RawValues;
}

function argumentFormat({ suffix, list, separator, ...shape }: ArgumentShape): ToolCallFormat {
  const tag = (name: string | undefined) => (name === undefined ? '' : `<${name}${suffix}>`);
  const tags: Tags = {
    listOpen: tag(list),
    listClose: list === undefined ? '' : tag(`/${list}`),
    open: tag('tool_call'),
    close: tag('/tool_call'),
    separator: tag(separator),
    key: tag('arg_key'),
    keyClose: tag('/arg_key'),
    value: tag('arg_value'),
    valueClose: tag('/arg_value'),
  };
  const { listOpen, listClose, open, close } = tags;
  const values = { format: shape.name, close: tags.valueClose, hasBreaks: false, call: { open, close } };
  const parts = { tags, values };
  return {
    ...shape,
    markers: Object.values<string>({ ...tags }).filter((text) => text !== ''),
    // GLM ends a turn where the next one would begin.
    turnEnds: ['<|user|>', '<|observation|>'],
    callEnd: close,
    begins: (char) => char === '<',
    read: (input, sink, place) => readCall(input, sink, place, parts),
    syntax: {
      before: listOpen === '' ? '' : sequence(listOpen, BREAK),
      between: '\n',
      after: listClose === '' ? '' : sequence(BREAK, listClose),
      call: (tool) => callGrammar(tool, parts),
      open: listOpen === '' ? open : listOpen,
      allowsTextAfterCalls: listOpen === '',
    },
  };
}

function* readCall(input: CallInput, sink: CallSink, place: CallPlace, parts: Parts): CallReading {
  const { listOpen, listClose, open, separator } = parts.tags;
  const starts = [open, ...(listOpen === '' ? [] : [listOpen, ...(place === 'afterCall' ? [listClose] : [])])];
  const first = yield* input.oneOf(...starts);
  if (first === undefined || first === listClose) return first !== undefined;
  yield* input.blanks();
  if (first === listOpen && !(yield* input.literal(open))) return false;
  yield* input.blanks();
  const name = (yield* input.word(NAME_CHAR))?.trim();
  if (name === undefined || !sink.knows(name)) return false;
  yield* input.blanks();
  if ((yield* input.peek()) !== '<' || (separator !== '' && !(yield* input.literal(separator)))) return false;
  sink.begin(name);
  return yield* readArguments(input, sink, name, parts);
}

function* readArguments(input: CallInput, sink: CallSink, name: string, { tags, values }: Parts): CallReading {
  const types = argumentTypesOf(sink.tools?.find((tool) => tool.function.name === name)?.function.parameters);
  for (let isFirst = true; ; isFirst = false) {
    yield* input.blanks();
    const tag = yield* input.oneOf(tags.key, tags.close);
    if (tag === undefined) return false;
    if (tag === tags.close) return endArguments(sink, isFirst);
    const key = yield* input.word(NAME_CHAR);
    if (key === undefined || !(yield* input.literal(tags.keyClose))) return false;
    yield* input.blanks();
    if (!(yield* input.literal(tags.value))) return false;
    sink.add(`${isFirst ? '{' : ', '}${JSON.stringify(key)}: `);
    const end = yield* readRawValue(input, sink, types(key), values);
    if (end === undefined) return false;
    if (end === 'call') return endArguments(sink, false);
  }
}

function endArguments(sink: CallSink, areEmpty: boolean): boolean {
  if (!areEmpty) sink.add('}');
  sink.finish();
  return true;
}

function callGrammar({ name, hasFreeArguments, rules, rejectName }: GrammarTool, { tags, values }: Parts): GrammarExpr {
  const { open, separator, close } = tags;
  if (name.trim() !== name || ![...name].every((char) => NAME_CHAR.test(char)))
    rejectName('a name without <, > or line breaks, and without blanks around it');
  const args = hasFreeArguments
    ? [repeat(argument(looseName(), without(values.close), tags), 0, null)]
    : rules.members(values.format).map((member) => {
        if (member.name === '' || ![...member.name].every((char) => NAME_CHAR.test(char)))
          throw unsupported(member.path, `${values.format} calls cannot write names with <, > or line breaks`);
        const expr = argument(member.name, rawValue(values, rules, member.schema, member.path), tags);
        return member.isRequired ? expr : optional(expr);
      });
  return sequence(`${open}${name}${separator}`, BREAK, ...args, literal(close));
}

function argument(key: GrammarExpr | string, value: GrammarExpr, tags: Tags): GrammarExpr {
  return sequence(tags.key, key, tags.keyClose, BREAK, tags.value, value, tags.valueClose, BREAK);
}

function looseName(): GrammarExpr {
  return repeat(charClass([' ', ';'], '=', ['?', '~'], ['\u00a0', '\u{10ffff}']), 1, MAX_LOOSE_NAME);
}
