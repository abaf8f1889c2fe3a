import type { CallInput, CallReading, Reading } from './input';

const MAX_DEPTH = 64;
const MAX_WORD = 400;
const WORD = /[-+.\w]/;
const WORDS = new Map([
  ['True', 'true'],
  ['False', 'false'],
  ['None', 'null'],
  ['true', 'true'],
  ['false', 'false'],
  ['null', 'null'],
]);
const NUMBER = /^([-+]?)(?:(0[xX][\da-fA-F]+|0[oO][0-7]+|0[bB][01]+)|(0|[1-9]\d*)?(\.\d*)?([eE][-+]?\d+)?)$/;

/** JSON for Python escapes such as `\a`. `\/` is not an escape in Python, but models write it as in JSON. */
const ESCAPES: Readonly<Record<string, string>> = {
  '\\': '\\\\',
  "'": "'",
  '"': '\\"',
  a: '\\u0007',
  b: '\\b',
  f: '\\f',
  n: '\\n',
  r: '\\r',
  t: '\\t',
  v: '\\u000b',
  '/': '/',
  '\n': '',
};
const HEX_ESCAPES: Readonly<Record<string, number>> = { x: 2, u: 4, U: 8 };

/**
 * Reads a Python literal and emits it as JSON text while it is read: strings, numbers, True, False, None, lists, tuples
 * and dictionaries with string keys. Returns false for anything else. Evaluates nothing.
 */
export function* readPythonLiteral(input: CallInput, emit: (json: string) => void, depth = 0): CallReading {
  yield* input.blanks();
  const char = yield* input.peek();
  if (char === undefined || depth > MAX_DEPTH) return false;
  if (char === '"' || char === "'") return yield* readString(input, emit);
  const readItem = () => readPythonLiteral(input, emit, depth + 1);
  if (char === '[') return yield* readItems(input, emit, ']', '[]', readItem);
  if (char === '(') return yield* readItems(input, emit, ')', '[]', readItem);
  if (char === '{') return yield* readItems(input, emit, '}', '{}', () => readMember(input, emit, depth));
  return yield* readWord(input, emit);
}

function* readWord(input: CallInput, emit: (json: string) => void): CallReading {
  let word = '';
  for (;;) {
    const char = yield* input.peek();
    // A text that is cut may lack a part of the word.
    if (char === undefined) return false;
    if (!WORD.test(char)) break;
    word += char;
    if (word.length > MAX_WORD) return false;
    input.skip();
  }
  const json = WORDS.get(word) ?? toJsonNumber(word);
  if (json === undefined) return false;
  emit(json);
  return true;
}

function toJsonNumber(word: string): string | undefined {
  const plain = word.replace(/(?<=[\da-fA-F])_(?=[\da-fA-F])/g, '');
  const match = NUMBER.exec(plain);
  if (match === null) return undefined;
  const [, sign, based, whole = '', fraction = '', exponent = ''] = match;
  const minus = sign === '-' ? '-' : '';
  if (based !== undefined) return minus + BigInt(based).toString();
  if (whole === '' && fraction.length < 2) return undefined;
  return minus + (whole === '' ? '0' : whole) + (fraction === '.' ? '.0' : fraction) + exponent;
}

/** Reads the items between brackets. The reader stands at the opening one. `brackets` are those of the JSON text. */
export function* readItems(
  input: CallInput,
  emit: (json: string) => void,
  close: string,
  [open, end]: string,
  readItem: () => CallReading,
): CallReading {
  input.skip();
  emit(open);
  for (let isFirst = true; ; isFirst = false) {
    yield* input.blanks();
    if ((yield* input.peek()) === close) break;
    if (!isFirst) emit(', ');
    if (!(yield* readItem()) || !(yield* readComma(input, close))) return false;
  }
  input.skip();
  emit(end);
  return true;
}

function* readMember(input: CallInput, emit: (json: string) => void, depth: number): CallReading {
  const char = yield* input.peek();
  if ((char !== '"' && char !== "'") || !(yield* readString(input, emit))) return false;
  yield* input.blanks();
  if ((yield* input.next()) !== ':') return false;
  emit(': ');
  return yield* readPythonLiteral(input, emit, depth + 1);
}

/** Consumes a comma. Returns true without consuming at the closing character, false at any other. */
export function* readComma(input: CallInput, close: string): CallReading {
  yield* input.blanks();
  const char = yield* input.peek();
  if (char === ',') input.skip();
  return char === ',' || char === close;
}

/** Reads a string between one or three quotes of either kind. Models break lines in both, unlike Python. */
function* readString(input: CallInput, emit: (json: string) => void): CallReading {
  const quote = (yield* input.next())!;
  emit('"');
  let length = 1;
  if ((yield* input.peek()) === quote) {
    input.skip();
    const next = yield* input.peek();
    if (next === undefined) return false;
    if (next !== quote) {
      emit('"');
      return true;
    }
    input.skip();
    length = 3;
  }
  for (let numQuotes = 0; ;) {
    const char = yield* input.next();
    if (char === undefined) return false;
    if (char === quote) {
      if (++numQuotes < length) continue;
      emit('"');
      return true;
    }
    if (numQuotes > 0) emit(escapeForJson(quote.repeat(numQuotes)));
    numQuotes = 0;
    const json = char === '\\' ? yield* readEscape(input) : escapeForJson(char);
    if (json === undefined) return false;
    emit(json);
  }
}

/** Returns the JSON text of an escape. An escape that Python does not know stays unchanged. */
function* readEscape(input: CallInput): Reading<string | undefined> {
  const char = yield* input.next();
  if (char === undefined || char === 'N') return undefined;
  const known = ESCAPES[char];
  if (known !== undefined) return known;
  if (/[0-7]/.test(char)) return yield* readDigits(input, char, 3, /[0-7]/, 8, 1);
  const numDigits = HEX_ESCAPES[char];
  if (numDigits === undefined) return `\\\\${escapeForJson(char)}`;
  return yield* readDigits(input, '', numDigits, /[\da-fA-F]/, 16, numDigits);
}

function* readDigits(
  input: CallInput,
  first: string,
  max: number,
  pattern: RegExp,
  base: number,
  min: number,
): Reading<string | undefined> {
  let digits = first;
  while (digits.length < max) {
    const char = yield* input.peek();
    if (char === undefined) return undefined;
    if (!pattern.test(char)) break;
    digits += char;
    input.skip();
  }
  const code = Number.parseInt(digits, base);
  if (digits.length < min || code > 0x10ffff) return undefined;
  // A surrogate stays an escape, because the other half of the pair may follow as an escape.
  return code >= 0xd800 && code <= 0xdfff ? `\\u${code.toString(16)}` : escapeForJson(String.fromCodePoint(code));
}

/**
 * Escapes text for the inside of a JSON string. NOTE: unlike JSON.stringify, keeps a lone surrogate, whose other half
 * may follow.
 */
export function escapeForJson(text: string): string {
  return text.replace(/["\\\u0000-\u001f]/g, (char) => JSON.stringify(char).slice(1, -1));
}
