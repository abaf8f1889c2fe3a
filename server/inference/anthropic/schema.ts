import { CALL_PROPERTIES, MAX_CONTENT_PARTS, MAX_MESSAGES, MAX_STOPS, MAX_TOOLS, nonEmptyText } from '../openai/schema';
import type { NullMap } from '../../base/json/nulls';
import {
  above,
  array,
  boolean,
  integer,
  number,
  object,
  oneOf,
  openObject,
  type Static,
  string,
  stringOr,
  unsafe,
} from '../../base/json/schema-types';

const blocks = { maxItems: MAX_CONTENT_PARTS, description: 'a string or an array of content blocks' };
const textBlocks = stringOr(array(object({ type: string, text: string }, ['type']), blocks), blocks);

/**
 * The fields of texts, documents, search results and references to tools. Blocks that are not served have other values
 * in some of them.
 */
const innerBlock = {
  type: string,
  text: string,
  source: stringOr(object({ type: string, data: string, content: textBlocks }, ['type'])),
  content: textBlocks,
  title: string,
  context: string,
  citations: unsafe<unknown>({}),
  tool_name: string,
};

/** All kinds of blocks in one: which fields a block needs depends on its type. */
const block = {
  ...innerBlock,
  id: string,
  name: string,
  input: openObject,
  tool_use_id: string,
  is_error: boolean,
  thinking: string,
};
const inner = array(object(innerBlock, ['type']), blocks);
const contentBlocks = array(object({ ...block, content: stringOr(inner, blocks) }, ['type']), blocks);

const message = object({ role: oneOf('user', 'assistant', 'system'), content: stringOr(contentBlocks, blocks) }, [
  'role',
  'content',
]);

const tool = object({
  type: string,
  name: string,
  description: string,
  input_schema: openObject,
  strict: boolean,
  defer_loading: boolean,
});

const outputFormat = object({ type: oneOf('json_schema'), schema: openObject }, ['type', 'schema']);

/** The fields that decide the prompt. */
const CONVERSATION = {
  model: string,
  messages: array(message, { minItems: 1, maxItems: MAX_MESSAGES }),
  system: textBlocks,
  tools: array(tool, { maxItems: MAX_TOOLS }),
  tool_choice: object(
    { type: oneOf('auto', 'any', 'tool', 'none'), name: string, disable_parallel_tool_use: boolean },
    ['type'],
  ),
  thinking: object({ type: oneOf('enabled', 'disabled', 'adaptive'), budget_tokens: integer({ minimum: 1 }) }, [
    'type',
  ]),
  output_config: object({ effort: oneOf('low', 'medium', 'high', 'xhigh', 'max'), format: outputFormat }),
  output_format: outputFormat,
  chat_template_kwargs: openObject,
};

export const MESSAGES_REQUEST = object(
  {
    ...CONVERSATION,
    max_tokens: integer({ minimum: 0 }),
    stream: boolean,
    stop_sequences: array(nonEmptyText, {
      maxItems: MAX_STOPS,
      description: `an array of up to ${MAX_STOPS} strings of at least one character`,
    }),
    temperature: number(0, 2),
    top_p: above(0, 1),
    top_k: integer({ minimum: -1 }),
    min_p: number(0, 1),
    repetition_penalty: above(0),
    seed: integer({ description: 'a 64-bit integer' }),
    cache_salt: CALL_PROPERTIES.cache_salt,
    thread: object({ type: oneOf('create', 'continue'), previous_message_id: string }, ['type']),
  },
  ['messages', 'max_tokens'],
);

export const COUNT_TOKENS_REQUEST = object(CONVERSATION, ['messages']);

const DOCUMENT_NULLS: NullMap = { source: { content: { each: {} } }, citations: {} };
const BLOCK_NULLS: NullMap = { ...DOCUMENT_NULLS, content: { each: DOCUMENT_NULLS } };

export const MESSAGES_NULLS: NullMap = {
  messages: { each: { content: { each: BLOCK_NULLS } } },
  system: { each: {} },
  tools: { each: {} },
  tool_choice: {},
  thinking: {},
  output_config: { format: {} },
  output_format: {},
  thread: {},
};

export type MessagesRequest = Static<typeof MESSAGES_REQUEST>;
export type ConversationRequest = Static<typeof COUNT_TOKENS_REQUEST>;
export type WireMessage = Static<typeof message>;
export type ContentBlock = Static<typeof contentBlocks>[number];
export type TextBlock = Pick<InnerBlock, 'type' | 'text'>;
export type InnerBlock = Static<typeof inner>[number];
