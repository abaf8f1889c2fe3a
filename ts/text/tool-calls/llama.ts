import { sequence } from '../grammar';
import type { ToolCallFormat } from './format';
import { readJsonCall } from './json-call';

const TAG = '<|python_tag|>';
const SHAPE = { argumentsKeys: ['parameters', 'arguments'], isUnmarked: true };

/** Llama 3.1 and later: the message consists of calls `{"name": …, "parameters": {…}}`, separated by `;`. */
export const llama3Json: ToolCallFormat = {
  name: 'llama3_json',
  aliases: ['llama', 'llama3', 'llama3.1', 'llama3.2', 'llama3.3', 'llama4_json'],
  matchesTemplate: (mentions) =>
    mentions('"parameters": ') && (mentions('<|start_header_id|>') || mentions('<|header_start|>')),
  markers: [TAG],
  begins: (char, place) =>
    char === '<' || (char === '{' && place !== 'text') || (char === ';' && place === 'afterCall'),
  *read(input, sink) {
    if ((yield* input.peek()) === ';') {
      input.skip();
      yield* input.blanks();
      if ((yield* input.peek()) === undefined) return true;
    }
    if ((yield* input.peek()) === '<' && !(yield* input.literal(TAG))) return false;
    return yield* readJsonCall(input, sink, SHAPE);
  },
  syntax: {
    before: '',
    between: '; ',
    after: '',
    call: ({ name, json }) => sequence(`{"name": ${JSON.stringify(name)}, "parameters": `, json(), '}'),
    open: TAG,
    allowsTextAfterCalls: false,
    unmarked: { first: '{', close: '' },
  },
};
