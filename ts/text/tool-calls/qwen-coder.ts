import { charClass, type GrammarExpr, literal, optional, repeat, sequence, without } from '../grammar';
import { unsupported } from '../schema-error';
import { argumentTypesOf } from './argument-types';
import type { CallSink, GrammarTool, ToolCallFormat } from './format';
import type { CallInput, CallReading } from './input';
import { type RawValues, rawValue, readRawValue } from './raw-values';

const [FUNCTION, FUNCTION_CLOSE] = ['<function=', '</function>'];
const [PARAMETER, PARAMETER_CLOSE] = ['<parameter=', '</parameter>'];
const MAX_LOOSE_NAME = 64;
const NAME = /^[^<>\n]$/u;

/**
 * Qwen3-Coder and Qwen 3.5: `<tool_call><function=NAME><parameter=KEY>` and the raw value on separate lines. The
 * schema of the tool gives its type.
 */
export const qwen3Coder = xmlFormat({
  name: 'qwen3_coder',
  aliases: ['qwen3_xml', 'qwen3-coder'],
  open: '<tool_call>',
  close: '</tool_call>',
  hasBreaks: true,
});

/** Seed-OSS: like Qwen3-Coder with other markers, and values without line breaks around them. */
export const seedOss = xmlFormat({
  name: 'seed_oss',
  aliases: [],
  open: '<seed:tool_call>',
  close: '</seed:tool_call>',
  hasBreaks: false,
});

interface XmlShape {
  name: string;
  aliases: readonly string[];
  open: string;
  close: string;
  /** Values stand on separate lines. */
  hasBreaks: boolean;
}

function xmlFormat({ name, aliases, open, close, hasBreaks }: XmlShape): ToolCallFormat {
  const values = { format: name, close: PARAMETER_CLOSE, hasBreaks };
  return {
    name,
    aliases,
    matchesTemplate: (mentions) => mentions(open) && mentions(FUNCTION) && mentions(PARAMETER),
    markers: [open, close],
    callEnd: close,
    begins: (char) => char === '<',
    *read(input, sink) {
      const first = yield* input.oneOf(open, ...(sink.isConstrained ? [] : [FUNCTION]));
      if (first === undefined) return false;
      if (first === open) {
        yield* input.blanks();
        if (!(yield* input.literal(FUNCTION))) return false;
      }
      if (!(yield* readFunction(input, sink, values))) return false;
      if (first !== open) return true;
      yield* input.blanks();
      return yield* input.literalOrEnd(close);
    },
    syntax: {
      before: '',
      between: '\n',
      after: '',
      call: (tool) => sequence(`${open}\n`, functionCall(tool, values), literal(`\n${close}`)),
      open,
      allowsTextAfterCalls: true,
    },
  };
}

function* readFunction(input: CallInput, sink: CallSink, values: RawValues): CallReading {
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
    if ((yield* readRawValue(input, sink, types(key), values)) === undefined) return false;
  }
}

function functionCall({ name, hasFreeArguments, rules, rejectName }: GrammarTool, values: RawValues): GrammarExpr {
  if (![...name].every((char) => NAME.test(char))) rejectName('a name without <, > or line breaks');
  const args = hasFreeArguments
    ? [repeat(looseArgument(values), 0, null)]
    : rules.members(values.format).map((member) => {
        if (member.name === '' || ![...member.name].every((char) => NAME.test(char)))
          throw unsupported(member.path, `${values.format} calls cannot write names with <, > or line breaks`);
        const expr = argument(member.name, rawValue(values, rules, member.schema, member.path), values);
        return member.isRequired ? expr : optional(expr);
      });
  return sequence(`${FUNCTION}${name}>\n`, ...args, literal(FUNCTION_CLOSE));
}

function argument(key: GrammarExpr | string, value: GrammarExpr, { hasBreaks }: RawValues): GrammarExpr {
  const lineBreak = literal(hasBreaks ? '\n' : '');
  return sequence(PARAMETER, key, '>', lineBreak, value, lineBreak, literal(`${PARAMETER_CLOSE}\n`));
}

function looseArgument(values: RawValues): GrammarExpr {
  const key = repeat(charClass([' ', ';'], '=', ['?', '~'], ['\u00a0', '\u{10ffff}']), 1, MAX_LOOSE_NAME);
  return argument(key, without(PARAMETER_CLOSE), values);
}
