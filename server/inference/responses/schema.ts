import {
  CALL_PROPERTIES,
  MAX_CONTENT_PARTS,
  MAX_MESSAGES,
  MAX_TOOLS,
  nonEmptyText,
  SAMPLING_PROPERTIES,
} from '../openai/schema';
import type { NullMap } from '../../base/json/nulls';
import {
  array,
  boolean,
  integer,
  object,
  oneOf,
  openObject,
  type Static,
  string,
  stringOr,
  text,
  unsafe,
} from '../../base/json/schema-types';
import { METADATA } from '../../storage/responses/metadata';

/** Limit of fields that are stored and sent back. */
const MAX_LABEL = 512;

const parts = array(object({ type: string, text: string, refusal: string }, ['type']), { maxItems: MAX_CONTENT_PARTS });
const textOrParts = stringOr(parts, { description: 'a string or an array of text parts' });

const label = text({ maxLength: MAX_LABEL, description: `a string of up to ${MAX_LABEL} characters` });

/** All kinds of items in one: which fields an item needs depends on its type. */
const inputItem = object({
  type: string,
  id: string,
  role: oneOf('system', 'developer', 'user', 'assistant'),
  content: textOrParts,
  summary: parts,
  call_id: string,
  namespace: string,
  name: string,
  arguments: string,
  input: string,
  output: textOrParts,
});

const toolFields = {
  type: string,
  name: string,
  description: string,
  parameters: openObject,
  strict: boolean,
  format: openObject,
};
const innerTool = object(toolFields, ['type']);
/** A namespace has further tools. */
const tool = object({ ...toolFields, tools: array(innerTool, { maxItems: MAX_TOOLS }) }, ['type']);

const { n: _n, best_of: _bestOf, ...samplingProperties } = SAMPLING_PROPERTIES;

export const RESPONSES_REQUEST = object(
  {
    model: string,
    input: stringOr(array(inputItem, { maxItems: MAX_MESSAGES }), { description: 'a string or an array of items' }),
    instructions: string,
    previous_response_id: nonEmptyText,
    store: boolean,
    stream: boolean,
    stream_options: object({ include_obfuscation: boolean }),
    max_output_tokens: integer({ minimum: 1 }),
    tools: array(tool, { maxItems: MAX_TOOLS }),
    tool_choice: stringOr(
      object(
        {
          type: string,
          namespace: string,
          name: string,
          mode: string,
          tools: array(openObject, { maxItems: MAX_TOOLS }),
        },
        ['type'],
      ),
    ),
    parallel_tool_calls: boolean,
    text: object({
      format: object({ type: oneOf('text', 'json_object', 'json_schema'), name: string, schema: unsafe<unknown>({}) }, [
        'type',
      ]),
      verbosity: string,
    }),
    reasoning: object({ effort: oneOf('none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'), summary: string }),
    top_logprobs: integer({ minimum: 0 }),
    include: array(string, { maxItems: MAX_TOOLS }),
    truncation: string,
    chat_template_kwargs: openObject,
    metadata: METADATA,
    user: label,
    prompt_cache_key: label,
    safety_identifier: label,
    thinking_token_budget: integer({ minimum: -1 }),
    ...samplingProperties,
    cache_salt: CALL_PROPERTIES.cache_salt,
  },
  ['input'],
);

export const RESPONSES_NULLS: NullMap = {
  input: { each: { content: { each: {} }, summary: { each: {} }, output: { each: {} } } },
  tools: { each: { tools: { each: {} } } },
  text: { format: {} },
  reasoning: {},
  stream_options: {},
};

export type ResponsesRequest = Static<typeof RESPONSES_REQUEST>;
export type InputItem = Static<typeof inputItem>;
export type WireTool = Static<typeof tool>;
export type InnerTool = Static<typeof innerTool>;
export type ContentPart = Static<typeof parts>[number];
