import { sequence } from '../grammar';
import type { CallSink, ToolCallFormat } from './format';
import type { CallInput, CallReading } from './input';
import { readJsonArguments } from './json-call';

const [OPEN, CLOSE] = ['<|tools_prefix|>', '<|tools_suffix|>'];

/** Apertus: a JSON list of objects with one member, whose key is the name of the function. */
export const apertus: ToolCallFormat = {
  name: 'apertus',
  aliases: [],
  matchesTemplate: (mentions) => mentions(OPEN),
  markers: [OPEN, CLOSE],
  callEnd: CLOSE,
  begins: (char) => char === '<',
  *read(input, sink) {
    if (!(yield* input.literal(OPEN))) return false;
    yield* input.blanks();
    if (!(yield* input.literal('[')) || !(yield* readItems(input, sink))) return false;
    yield* input.blanks();
    return yield* input.literalOrEnd(CLOSE);
  },
  syntax: {
    before: `${OPEN}[`,
    between: ', ',
    after: `]${CLOSE}`,
    call: ({ name, json }) => sequence(`{${JSON.stringify(name)}: `, json(), '}'),
    open: OPEN,
    allowsTextAfterCalls: false,
  },
};

function* readItems(input: CallInput, sink: CallSink): CallReading {
  yield* input.blanks();
  if ((yield* input.peek()) === ']') return yield* input.literal(']');
  for (;;) {
    yield* input.blanks();
    if (!(yield* readItem(input, sink))) return false;
    yield* input.blanks();
    if ((yield* input.peek()) !== ',') return yield* input.literalOrEnd(']');
    input.skip();
  }
}

function* readItem(input: CallInput, sink: CallSink): CallReading {
  if (!(yield* input.literal('{'))) return false;
  yield* input.blanks();
  const name = yield* readKey(input);
  if (name === undefined || !sink.knows(name)) return false;
  yield* input.blanks();
  if (!(yield* input.literal(':'))) return false;
  sink.begin(name);
  if (!(yield* readJsonArguments(input, sink))) return false;
  yield* input.blanks();
  return yield* input.literalOrEnd('}');
}

/** Reads a JSON string without escapes. */
function* readKey(input: CallInput): Generator<undefined, string | undefined, string | undefined> {
  if (!(yield* input.literal('"'))) return undefined;
  const name = yield* input.word(/^[^"\\]$/);
  return (yield* input.literal('"')) ? name : undefined;
}
