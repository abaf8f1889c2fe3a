import { literal, sequence } from '../grammar';
import type { CallSink, CallPlace, ToolCallFormat, GrammarTool } from './format';
import type { CallInput, CallReading } from './input';
import { readJsonArguments } from './json-call';

const marker = (words: string) => `<｜tool▁${words}｜>`;
const [CALLS_BEGIN, CALLS_END] = [marker('calls▁begin'), marker('calls▁end')];
const [BEGIN, SEPARATOR, END] = [marker('call▁begin'), marker('sep'), marker('call▁end')];
const FENCE = '```';
const NAME = /^[^<\n`]$/u;

const shared = {
  markers: [CALLS_BEGIN, CALLS_END, BEGIN, SEPARATOR, END],
  callEnd: END,
  begins: (char: string) => char === '<',
  *read(input: CallInput, sink: CallSink, place: CallPlace): CallReading {
    const first = yield* input.oneOf(CALLS_BEGIN, ...(place === 'afterCall' ? [BEGIN, CALLS_END] : []));
    if (first === undefined || first === CALLS_END) return first !== undefined;
    if (first === CALLS_BEGIN) {
      yield* input.blanks();
      if (!(yield* input.literal(BEGIN))) return false;
    }
    return yield* readCall(input, sink);
  },
};

/** DeepSeek V3 and R1: the word `function` before the name, and the arguments in a code fence. */
export const deepseekV3: ToolCallFormat = {
  ...shared,
  name: 'deepseek_v3',
  aliases: ['deepseekv3', 'deepseek_r1'],
  matchesTemplate: (mentions) => mentions(BEGIN) && mentions(`${FENCE}json`),
  syntax: {
    before: CALLS_BEGIN,
    between: '\n',
    after: CALLS_END,
    call: (tool) =>
      sequence(
        `${BEGIN}function${SEPARATOR}${checkedName(tool)}\n${FENCE}json\n`,
        tool.json(),
        literal(`\n${FENCE}${END}`),
      ),
    open: CALLS_BEGIN,
    allowsTextAfterCalls: false,
  },
};

/** DeepSeek V3.1: the name and the arguments without a fence. */
export const deepseekV31: ToolCallFormat = {
  ...shared,
  name: 'deepseek_v31',
  aliases: ['deepseekv31', 'deepseek_v3.1'],
  matchesTemplate: (mentions) => mentions(BEGIN),
  syntax: {
    before: CALLS_BEGIN,
    between: '',
    after: CALLS_END,
    call: (tool) => sequence(`${BEGIN}${checkedName(tool)}${SEPARATOR}`, tool.json(), END),
    open: CALLS_BEGIN,
    allowsTextAfterCalls: false,
  },
};

/** Reads a call of either version, after the opening marker. */
function* readCall(input: CallInput, sink: CallSink): CallReading {
  const kindOrName = yield* input.word(NAME);
  if (kindOrName === undefined || !(yield* input.literal(SEPARATOR))) return false;
  yield* input.blanks();
  const name = (yield* input.peek()) === '{' ? kindOrName : yield* input.word(NAME);
  if (name === undefined || !sink.knows(name.trim())) return false;
  sink.begin(name.trim());
  yield* input.blanks();
  const isFenced = (yield* input.peek()) === FENCE[0];
  if (isFenced) {
    if (!(yield* input.literal(`${FENCE}json`))) return false;
    yield* input.blanks();
  }
  if (!(yield* readJsonArguments(input, sink))) return false;
  yield* input.blanks();
  if (isFenced && !(yield* input.literalOrEnd(FENCE))) return false;
  yield* input.blanks();
  return yield* input.literalOrEnd(END);
}

function checkedName({ name, rejectName }: GrammarTool): string {
  if (name.trim() !== name || ![...name].every((char) => NAME.test(char)))
    rejectName('a name without <, ` and surrounding blanks');
  return name;
}
