import { count, exactly, list, nullable, ref, type ResponseSchema, string } from './schema-parts';

const usage = exactly({
  input_tokens: { ...count, description: 'Without those that the prefix cache had' },
  cache_creation_input_tokens: { const: 0 },
  cache_read_input_tokens: count,
  output_tokens: count,
});
const stop = {
  stop_reason: nullable({ type: 'string', enum: ['end_turn', 'max_tokens', 'stop_sequence', 'tool_use'] }),
  stop_sequence: nullable(string),
};

/** Response bodies of `/v1/messages`. */
export const MESSAGE_SCHEMAS = {
  Message: exactly({
    id: string,
    type: { const: 'message' },
    role: { const: 'assistant' },
    model: string,
    content: list(ref('ContentBlock')),
    ...stop,
    usage,
  }),
  ContentBlock: {
    anyOf: [
      exactly({ type: { const: 'text' }, text: string }),
      exactly({ type: { const: 'thinking' }, thinking: string, signature: string }),
      exactly({ type: { const: 'tool_use' }, id: string, name: string, input: { type: 'object' } }),
    ],
  },
  MessageEvent: {
    anyOf: [
      exactly({ type: { const: 'message_start' }, message: ref('Message') }),
      exactly({ type: { const: 'ping' } }),
      exactly({ type: { const: 'content_block_start' }, index: count, content_block: ref('ContentBlock') }),
      exactly({ type: { const: 'content_block_delta' }, index: count, delta: ref('MessageDelta') }),
      exactly({ type: { const: 'content_block_stop' }, index: count }),
      exactly({ type: { const: 'message_delta' }, delta: exactly(stop), usage }),
      exactly({ type: { const: 'message_stop' } }),
    ],
  },
  MessageDelta: {
    anyOf: [
      exactly({ type: { const: 'text_delta' }, text: string }),
      exactly({ type: { const: 'thinking_delta' }, thinking: string }),
      exactly({ type: { const: 'signature_delta' }, signature: string }),
      exactly({ type: { const: 'input_json_delta' }, partial_json: string }),
    ],
  },
  TokenCount: exactly({ input_tokens: count }),
} satisfies Record<string, ResponseSchema>;
