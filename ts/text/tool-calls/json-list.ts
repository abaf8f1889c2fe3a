import { charClass, repeat, sequence } from '../grammar';
import type { CallPlace, CallSink, CallSyntax, ToolCallFormat } from './format';
import type { CallInput, CallReading } from './input';
import { type JsonCallShape, readJsonCall } from './json-call';
import { jsonCallText } from './written-calls';

const SHAPE = { argumentsKeys: ['arguments', 'parameters'] };

/**
 * Granite 3: a JSON list of calls after `<|tool_call|>`, or after `<tool_call>`, which stands for the same token in
 * some versions.
 */
export const granite = listFormat({
  name: 'granite',
  aliases: ['granite3'],
  matchesTemplate: (mentions) => mentions('<|tool_call|>') && !mentions('<|/tool_call|>'),
  opens: ['<|tool_call|>', '<tool_call>'],
  close: '',
});

/** Phi-4-mini: a JSON list of calls, or one call. Templates of other servers demand the word `functools` instead. */
export const phi4Mini = listFormat({
  name: 'phi4_mini_json',
  aliases: ['phi4_mini'],
  matchesTemplate: (mentions) => mentions('<|/tool|>') || mentions('<|/tool_call|>') || mentions('functools['),
  opens: ['<|tool_call|>', 'functools'],
  close: '<|/tool_call|>',
});

/** Command R7B and later models of Cohere: a JSON list of calls between tags. The template numbers the calls. */
export const cohereCommand = listFormat({
  name: 'cohere_command',
  aliases: ['cohere_command3', 'cohere_command4'],
  matchesTemplate: (mentions) => mentions('<|START_ACTION|>'),
  opens: ['<|START_ACTION|>'],
  close: '<|END_ACTION|>',
  shape: { nameKey: 'tool_name', argumentsKeys: ['parameters'] },
  syntax: {
    before: '<|START_ACTION|>[\n    ',
    between: ',\n    ',
    after: '\n]<|END_ACTION|>',
    call: ({ name, json }) =>
      sequence(
        '{"tool_call_id": "',
        repeat(charClass(['0', '9']), 1, 2),
        `", "tool_name": ${JSON.stringify(name)}, "parameters": `,
        json(),
        '}',
      ),
  },
});

/** Hunyuan-A13B: a JSON list of calls between tags. */
export const hunyuanA13b = listFormat({
  name: 'hunyuan_a13b',
  aliases: ['hunyuan'],
  matchesTemplate: (mentions) => mentions('<tool_calls>['),
  opens: ['<tool_calls>'],
  close: '</tool_calls>',
});

interface ListShape extends Pick<ToolCallFormat, 'name' | 'aliases' | 'matchesTemplate'> {
  /** Texts that may open the list. A word may do so only at the start. */
  opens: readonly string[];
  /** '': nothing closes the list. */
  close: string;
  /** Form of a call. Default: `{"name": …, "arguments": {…}}`. */
  shape?: JsonCallShape;
  /** How a model writes calls of that form. Then the templates write the calls. */
  syntax?: Pick<CallSyntax, 'before' | 'between' | 'after' | 'call'>;
}

/** Returns a format that writes one JSON list of calls between two markers. */
function listFormat({ opens, close, shape = SHAPE, syntax, ...rest }: ListShape): ToolCallFormat {
  const isMarker = (text: string): boolean => text.startsWith('<');
  return {
    ...rest,
    markers: [...opens, close].filter(isMarker),
    ...(close === '' ? {} : { callEnd: close }),
    begins: (char, place) => opens.some((open) => open[0] === char && (isMarker(open) || place !== 'text')),
    *read(input, sink, place) {
      const open = yield* input.oneOf(...allowedOpens(opens, place));
      if (open === undefined) return false;
      yield* input.blanks();
      if (!(yield* readCalls(input, sink, shape, isMarker(open)))) return false;
      if (close === '' || !isMarker(open)) return true;
      yield* input.blanks();
      return yield* input.literalOrEnd(close);
    },
    syntax: {
      before: `${opens[0]}[`,
      between: ', ',
      after: `]${close}`,
      call: ({ name, json }) => sequence(`{"name": ${JSON.stringify(name)}, "arguments": `, json(), '}'),
      ...syntax,
      open: opens[0],
      allowsTextAfterCalls: false,
    },
    ...(syntax === undefined && {
      write: (calls) => `${opens[0]}[${calls.map(jsonCallText).join(', ')}]${close}`,
    }),
  };
}

function allowedOpens(opens: readonly string[], place: CallPlace): readonly string[] {
  return place === 'text' ? opens.filter((open) => open.startsWith('<')) : opens;
}

/** Reads a list of calls, or one call. A list without a marker is not empty. */
function* readCalls(input: CallInput, sink: CallSink, shape: JsonCallShape, mayBeEmpty: boolean): CallReading {
  if ((yield* input.peek()) === '{') return yield* readJsonCall(input, sink, shape);
  return (yield* input.literal('[')) && (yield* readListItems(input, sink, mayBeEmpty, shape));
}

/** Reads the rest of a list of calls. */
export function* readListItems(
  input: CallInput,
  sink: CallSink,
  mayBeEmpty: boolean,
  shape: JsonCallShape = SHAPE,
): CallReading {
  yield* input.blanks();
  if (mayBeEmpty && (yield* input.peek()) === ']') return yield* input.literal(']');
  for (;;) {
    yield* input.blanks();
    if (!(yield* readJsonCall(input, sink, shape))) return false;
    yield* input.blanks();
    if ((yield* input.peek()) !== ',') return yield* input.literalOrEnd(']');
    input.skip();
  }
}
