import { charClass, choice, type GrammarExpr, literal, optional, repeat, sequence } from '../grammar';
import { jsonRule, PYTHON_DIALECT } from '../json-rules';
import { unsupported } from '../schema-error';
import type { CallSink, ToolCallFormat, GrammarTool } from './format';
import type { CallInput, CallReading } from './input';
import { readListItems } from './json-list';
import { readComma, readPythonLiteral } from './python-literal';
import { pythonCallText } from './written-calls';

const [OPEN, CLOSE] = ['<|python_start|>', '<|python_end|>'];
const [LIST_OPEN, LIST_CLOSE] = ['<|tool_call_start|>', '<|tool_call_end|>'];
const [CALLS_OPEN, CALLS_CLOSE] = ['<function_calls>', '</function_calls>'];
const MAX_LOOSE_NAME = 63;
const NAME = /^[\p{L}\p{N}_.]$/u;
const FUNCTION_NAME = /^[\p{L}_][\p{L}\p{N}_]*(?:\.[\p{L}_][\p{L}\p{N}_]*)*$/u;
const IDENTIFIER = /^[\p{L}_][\p{L}\p{N}_]*$/u;

/** LFM2: a Python list of calls between markers. A prompt can also ask for JSON in it. */
export const lfm2: ToolCallFormat = {
  name: 'lfm2',
  aliases: ['lfm2.5'],
  matchesTemplate: (mentions) => mentions('<|tool_call_start|>') || mentions('"List of tools: '),
  markers: [LIST_OPEN, LIST_CLOSE],
  callEnd: LIST_CLOSE,
  begins: (char) => char === '<',
  *read(input, sink) {
    if (!(yield* input.literal(LIST_OPEN))) return false;
    yield* input.blanks();
    if (!(yield* input.literal('['))) return false;
    yield* input.blanks();
    const readItems = (yield* input.peek()) === '{' ? readListItems : readCalls;
    if (!(yield* readItems(input, sink, true))) return false;
    yield* input.blanks();
    return yield* input.literalOrEnd(LIST_CLOSE);
  },
  syntax: {
    before: `${LIST_OPEN}[`,
    between: ', ',
    after: `]${LIST_CLOSE}`,
    call: pythonCall,
    open: LIST_OPEN,
    allowsTextAfterCalls: false,
    dialect: PYTHON_DIALECT,
  },
  write: (calls) => `${LIST_OPEN}[${calls.map(pythonCallText).join(', ')}]${LIST_CLOSE}`,
};

/** OLMo 3: calls in Python on separate lines, between markers. Its constants are those of JSON. */
export const olmo3: ToolCallFormat = {
  name: 'olmo3',
  aliases: [],
  matchesTemplate: (mentions) => mentions(CALLS_OPEN),
  markers: [CALLS_OPEN, CALLS_CLOSE],
  callEnd: CALLS_CLOSE,
  begins: (char) => char === '<',
  *read(input, sink) {
    if (!(yield* input.literal(CALLS_OPEN))) return false;
    do {
      yield* input.blanks();
      if (!(yield* readCall(input, sink))) return false;
      yield* input.blanks();
    } while (FUNCTION_NAME.test((yield* input.peek()) ?? ''));
    return yield* input.literalOrEnd(CALLS_CLOSE);
  },
  syntax: {
    before: `${CALLS_OPEN}\n`,
    between: '\n',
    after: `\n${CALLS_CLOSE}`,
    call: pythonCall,
    open: CALLS_OPEN,
    allowsTextAfterCalls: false,
  },
};

/** Llama 3.2 and 4: the message is a Python list of calls, `[f(a=1), g(b="x")]`. */
export const pythonic: ToolCallFormat = {
  name: 'pythonic',
  aliases: ['llama4_pythonic', 'llama3.2_pythonic'],
  matchesTemplate: (mentions) => mentions('[func_name1('),
  markers: [OPEN, CLOSE],
  callEnd: CLOSE,
  begins: (char, place) => char === '<' || (char === '[' && place !== 'text'),
  *read(input, sink) {
    const isMarked = (yield* input.peek()) === '<';
    if (isMarked && !(yield* input.literal(OPEN))) return false;
    yield* input.blanks();
    if (!(yield* input.literal('[')) || !(yield* readCalls(input, sink, isMarked))) return false;
    yield* input.blanks();
    return !isMarked || (yield* input.literalOrEnd(CLOSE));
  },
  syntax: {
    before: '[',
    between: ', ',
    after: ']',
    call: pythonCall,
    open: OPEN,
    allowsTextAfterCalls: false,
    dialect: PYTHON_DIALECT,
    unmarked: { first: '[', close: CLOSE },
  },
};

/** Reads the rest of a list of calls. */
function* readCalls(input: CallInput, sink: CallSink, mayBeEmpty: boolean): CallReading {
  for (let isFirst = true; ; isFirst = false) {
    yield* input.blanks();
    if ((!isFirst || mayBeEmpty) && (yield* input.peek()) === ']') break;
    if (!(yield* readCall(input, sink)) || !(yield* readComma(input, ']'))) return false;
  }
  input.skip();
  return true;
}

function* readCall(input: CallInput, sink: CallSink): CallReading {
  const name = yield* input.word(NAME);
  if (name === undefined || !FUNCTION_NAME.test(name) || !sink.knows(name)) return false;
  yield* input.blanks();
  if ((yield* input.next()) !== '(') return false;
  sink.begin(name);
  sink.add('{');
  for (let isFirst = true; ; isFirst = false) {
    yield* input.blanks();
    if ((yield* input.peek()) === ')') break;
    const key = yield* input.word(NAME);
    if (key === undefined || !IDENTIFIER.test(key)) return false;
    yield* input.blanks();
    if ((yield* input.next()) !== '=') return false;
    sink.add(`${isFirst ? '' : ', '}"${key}": `);
    if (!(yield* readPythonLiteral(input, (json) => sink.add(json))) || !(yield* readComma(input, ')'))) return false;
  }
  input.skip();
  sink.add('}');
  sink.finish();
  return true;
}

function pythonCall({ name, hasFreeArguments, rules, rejectName }: GrammarTool): GrammarExpr {
  if (!FUNCTION_NAME.test(name)) rejectName('Python names of letters, digits and _, joined by dots');
  const comma = sequence(',', optional(literal(' ')));
  if (hasFreeArguments) {
    const first = charClass(['A', 'Z'], ['a', 'z'], '_');
    const argument = sequence(
      first,
      repeat(choice(first, charClass(['0', '9'])), 0, MAX_LOOSE_NAME),
      '=',
      jsonRule('value', rules.dialect),
    );
    return sequence(`${name}(`, optional(sequence(argument, repeat(sequence(comma, argument), 0, null))), ')');
  }
  const members = rules.members('pythonic').map((member) => {
    if (!IDENTIFIER.test(member.name))
      throw unsupported(member.path, 'pythonic calls support only Python names for arguments');
    return {
      expr: sequence(`${member.name}=`, rules.value(member.schema, member.path)),
      isRequired: member.isRequired,
    };
  });
  return sequence(`${name}(`, rules.list(members, comma), ')');
}
