import { sequence } from '../grammar';
import type { CallPlace, CallSink, ToolCallFormat } from './format';
import type { CallInput, CallReading } from './input';
import { readJsonCall } from './json-call';
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
}

/** Returns a format that writes one JSON list of calls `[{"name": …, "arguments": {…}}]` between two markers. */
function listFormat({ opens, close, ...shape }: ListShape): ToolCallFormat {
  const isMarker = (text: string): boolean => text.startsWith('<');
  return {
    ...shape,
    markers: [...opens, close].filter(isMarker),
    ...(close === '' ? {} : { callEnd: close }),
    begins: (char, place) => opens.some((open) => open[0] === char && (isMarker(open) || place !== 'text')),
    *read(input, sink, place) {
      const open = yield* input.oneOf(...allowedOpens(opens, place));
      if (open === undefined) return false;
      yield* input.blanks();
      if (!(yield* readCalls(input, sink, isMarker(open)))) return false;
      if (close === '' || !isMarker(open)) return true;
      yield* input.blanks();
      return yield* input.literalOrEnd(close);
    },
    syntax: {
      before: `${opens[0]}[`,
      between: ', ',
      after: `]${close}`,
      call: ({ name, json }) => sequence(`{"name": ${JSON.stringify(name)}, "arguments": `, json(), '}'),
      open: opens[0],
      allowsTextAfterCalls: false,
    },
    write: (calls) => `${opens[0]}[${calls.map(jsonCallText).join(', ')}]${close}`,
  };
}

function allowedOpens(opens: readonly string[], place: CallPlace): readonly string[] {
  return place === 'text' ? opens.filter((open) => open.startsWith('<')) : opens;
}

/** Reads a list of calls, or one call. A list without a marker is not empty. */
function* readCalls(input: CallInput, sink: CallSink, mayBeEmpty: boolean): CallReading {
  if ((yield* input.peek()) === '{') return yield* readJsonCall(input, sink, SHAPE);
  return (yield* input.literal('[')) && (yield* readListItems(input, sink, mayBeEmpty));
}

/** Reads the rest of a list of calls. */
export function* readListItems(input: CallInput, sink: CallSink, mayBeEmpty: boolean): CallReading {
  yield* input.blanks();
  if (mayBeEmpty && (yield* input.peek()) === ']') return yield* input.literal(']');
  for (;;) {
    yield* input.blanks();
    if (!(yield* readJsonCall(input, sink, SHAPE))) return false;
    yield* input.blanks();
    if ((yield* input.peek()) !== ',') return yield* input.literalOrEnd(']');
    input.skip();
  }
}
