import { createHash, randomInt } from 'node:crypto';
import { charClass, literal, optional, repeat, sequence } from '../grammar';
import type { CallSink, ToolCallFormat } from './format';
import type { CallInput, CallReading } from './input';
import { readJsonArguments, readJsonCall } from './json-call';

const [OPEN, ID, ARGUMENTS] = ['[TOOL_CALLS]', '[CALL_ID]', '[ARGS]'];
const SHAPE = { argumentsKeys: ['arguments', 'parameters'] };
const NAME = /^[\w.-]$/;
const ID_CHARS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';
const ID_LENGTH = 9;
const ANY_ID = repeat(charClass(['A', 'Z'], ['a', 'z'], ['0', '9']), ID_LENGTH, ID_LENGTH);

const shared = {
  markers: [OPEN, ID, ARGUMENTS],
  newId: () => Array.from({ length: ID_LENGTH }, () => ID_CHARS[randomInt(ID_CHARS.length)]).join(''),
  toPromptId,
  begins: (char: string, place: string) => char === '[' || (place === 'afterCall' && NAME.test(char)),
  *read(input: CallInput, sink: CallSink, place: string): CallReading {
    if (place === 'afterCall' && (yield* input.peek()) !== '[') return yield* readNamedCall(input, sink, false);
    if (!(yield* input.literal(OPEN))) return false;
    yield* input.blanks();
    return (yield* input.peek()) === '[' ? yield* readList(input, sink) : yield* readNamedCall(input, sink, true);
  },
};

/** Mistral until 2024: `[TOOL_CALLS]` and a JSON array of all calls. */
export const mistral: ToolCallFormat = {
  ...shared,
  name: 'mistral',
  aliases: [],
  matchesTemplate: (mentions) => mentions(OPEN) && !mentions(ARGUMENTS),
  syntax: {
    before: sequence(OPEN, optional(literal(' ')), '['),
    between: ', ',
    after: ']',
    call: ({ name, json }) =>
      sequence(
        `{"name": ${JSON.stringify(name)}, "arguments": `,
        json(),
        optional(sequence(', "id": "', ANY_ID, '"')),
        '}',
      ),
    open: OPEN,
    allowsTextAfterCalls: false,
  },
};

/** Mistral since 2025: `[TOOL_CALLS]name[ARGS]{…}`, once per call. */
export const mistralArgs: ToolCallFormat = {
  ...shared,
  name: 'mistral_args',
  aliases: [],
  matchesTemplate: (mentions) => mentions(OPEN) && mentions(ARGUMENTS),
  syntax: {
    before: '',
    between: '',
    after: '',
    call: ({ name, json, rejectName }) => {
      if (![...name].every((char) => NAME.test(char))) rejectName('a name of ASCII letters, digits, _, . and -');
      return sequence(`${OPEN}${name}${ARGUMENTS}`, json());
    },
    open: OPEN,
    allowsTextAfterCalls: false,
  },
};

function* readList(input: CallInput, sink: CallSink): CallReading {
  yield* input.literal('[');
  for (;;) {
    yield* input.blanks();
    if (!(yield* readJsonCall(input, sink, SHAPE))) return false;
    yield* input.blanks();
    if ((yield* input.peek()) !== ',') return yield* input.literalOrEnd(']');
    input.skip();
  }
}

/** Reads a name and arguments. Some tokenizers hide `[ARGS]`, so it is optional after `[TOOL_CALLS]`. */
function* readNamedCall(input: CallInput, sink: CallSink, isMarked: boolean): CallReading {
  const name = yield* input.word(NAME);
  if (name === undefined) return false;
  let next = (yield* input.peek()) === '[' ? yield* input.oneOf(ID, ARGUMENTS) : undefined;
  if (next === ID) {
    if ((yield* input.word(NAME)) === undefined) return false;
    next = yield* input.oneOf(ARGUMENTS);
  }
  if (next !== ARGUMENTS && (!isMarked || (yield* input.peek()) !== '{')) return false;
  if (!sink.knows(name)) return false;
  sink.begin(name);
  return yield* readJsonArguments(input, sink);
}

/**
 * Maps an id to nine letters and digits, the only form that the chat templates accept. Equal ids give equal results.
 */
function toPromptId(id: string): string {
  if (/^[A-Za-z0-9]{9}$/.test(id)) return id;
  const digest = createHash('sha256').update(id).digest();
  return Array.from(digest.subarray(0, ID_LENGTH), (byte) => ID_CHARS[byte % ID_CHARS.length]).join('');
}
