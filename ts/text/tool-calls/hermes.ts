import { literal, sequence } from '../grammar';
import type { ToolCallFormat } from './format';
import { readJsonCall } from './json-call';
import { jsonCallText } from './written-calls';

const [OPEN, CLOSE] = ['<tool_call>', '</tool_call>'];
const SHAPE = { argumentsKeys: ['arguments', 'parameters'] };

/** Templates of other families mention the marker, too, but not around one JSON object. */
const OTHER_FORMATS = ['<arg_key>', ']<]minimax[>[', '<tool_calls>['];

/** Hermes, Qwen 2.5 and Qwen 3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once per call. */
export const hermes: ToolCallFormat = {
  name: 'hermes',
  aliases: ['qwen', 'qwen25', 'qwen2.5', 'qwen3', 'granite4', 'ernie45'],
  matchesTemplate: (mentions) => mentions(OPEN) && !OTHER_FORMATS.some(mentions),
  markers: [OPEN, CLOSE],
  callEnd: CLOSE,
  begins: (char) => char === '<',
  *read(input, sink) {
    if (!(yield* input.literal(OPEN)) || !(yield* readJsonCall(input, sink, SHAPE))) return false;
    yield* input.blanks();
    return yield* input.literalOrEnd(CLOSE);
  },
  syntax: {
    before: '',
    between: '\n',
    after: '',
    call: ({ name, json }) =>
      sequence(`${OPEN}\n{"name": ${JSON.stringify(name)}, "arguments": `, json(), literal(`}\n${CLOSE}`)),
    open: OPEN,
    allowsTextAfterCalls: true,
  },
  write: (calls) => calls.map((call) => `${OPEN}\n${jsonCallText(call)}\n${CLOSE}`).join('\n'),
};
