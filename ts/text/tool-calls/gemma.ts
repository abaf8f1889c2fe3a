import { sequence } from '../grammar';
import { GEMMA_DIALECT } from '../json-rules';
import type { ToolCallFormat } from './format';
import type { CallInput, CallReading, Reading } from './input';
import { escapeForJson, readItems, readPythonLiteral } from './python-literal';

const [OPEN, CLOSE, QUOTE] = ['<|tool_call>', '<tool_call|>', '<|"|>'];
const NAME = /^[^\s<{]$/u;
const KEY = /^[^\s:,<>{}[\]"]$/u;
const MAX_DEPTH = 64;

type Emit = (json: string) => void;

/** Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>`, once per call. */
export const gemma4: ToolCallFormat = {
  name: 'gemma4',
  aliases: [],
  matchesTemplate: (mentions) => mentions(`${OPEN}call:`),
  markers: [OPEN, CLOSE, QUOTE],
  // After its calls, the model waits for the results.
  turnEnds: ['<turn|>', '<|tool_response>'],
  callEnd: CLOSE,
  begins: (char) => char === '<',
  *read(input, sink) {
    if (!(yield* input.literal(`${OPEN}call:`))) return false;
    const name = yield* input.word(NAME);
    if (name === undefined || !sink.knows(name)) return false;
    yield* input.blanks();
    if ((yield* input.peek()) !== '{') return false;
    sink.begin(name);
    if (!(yield* readObject(input, (json) => sink.add(json), 0))) return false;
    sink.finish();
    yield* input.blanks();
    return yield* input.literalOrEnd(CLOSE);
  },
  syntax: {
    before: '',
    between: '',
    after: '',
    call: ({ name, json, rejectName }) => {
      if (![...name].every((char) => NAME.test(char))) rejectName('a name without <, { and blanks');
      return sequence(`${OPEN}call:${name}`, json(), CLOSE);
    },
    open: OPEN,
    allowsTextAfterCalls: true,
    dialect: GEMMA_DIALECT,
  },
};

/** Reads a value and emits it as JSON text while it is read. */
function* readValue(input: CallInput, emit: Emit, depth: number): CallReading {
  yield* input.blanks();
  const char = yield* input.peek();
  if (depth > MAX_DEPTH || char === '(') return false;
  if (char === '<') return yield* readText(input, emit);
  if (char === '{') return yield* readObject(input, emit, depth);
  if (char === '[') return yield* readItems(input, emit, ']', '[]', () => readValue(input, emit, depth + 1));
  return yield* readPythonLiteral(input, emit);
}

function readObject(input: CallInput, emit: Emit, depth: number): CallReading {
  return readItems(input, emit, '}', '{}', function* () {
    const key = yield* readKey(input);
    if (key === undefined) return false;
    emit(`"${escapeForJson(key)}": `);
    return yield* readValue(input, emit, depth + 1);
  });
}

/** Reads a key and the colon. A key may stand between the quotes of strings, or between those of JSON. */
function* readKey(input: CallInput): Reading<string | undefined> {
  const first = yield* input.peek();
  const quote = [QUOTE, '"'].find((text) => text[0] === first) ?? '';
  if (quote !== '' && !(yield* input.literal(quote))) return undefined;
  const key = yield* input.word(KEY);
  if (key === undefined || (quote !== '' && !(yield* input.literal(quote)))) return undefined;
  yield* input.blanks();
  return (yield* input.literal(':')) ? key : undefined;
}

/** Reads a string, which has no escapes. */
function* readText(input: CallInput, emit: Emit): CallReading {
  if (!(yield* input.literal(QUOTE))) return false;
  emit('"');
  for (let numMatched = 0; ;) {
    const char = yield* input.next();
    // NOTE: the first character of the marker does not occur in the rest of it.
    if (char === undefined) return false;
    if (char !== QUOTE[numMatched]) {
      if (numMatched > 0) emit(escapeForJson(QUOTE.slice(0, numMatched)));
      numMatched = 0;
    }
    if (char !== QUOTE[numMatched]) emit(escapeForJson(char));
    else if (++numMatched === QUOTE.length) break;
  }
  emit('"');
  return true;
}
