/** Requests that take long to receive, parse, check or render. */

const USER = [{ role: 'user', content: 'hi' }];

const repeat = <T>(count: number, item: (i: number) => T): T[] => Array.from({ length: count }, (_, i) => item(i));
const manyProperties = (count: number) => ({
  type: 'object',
  properties: Object.fromEntries(repeat(count, (i) => [`p${i}`, { type: 'string' }])),
});
const toolWith = (parameters: unknown) => [{ type: 'function', function: { name: 'f', parameters } }];
const jsonSchema = (schema: unknown) => ({ type: 'json_schema', json_schema: { name: 'n', schema } });

export interface HostileBody {
  name: string;
  path: string;
  body: object;
  /** Status of the response of `serve demo`. */
  status: number;
}

const chat = (name: string, body: object, status = 400): HostileBody => ({
  name,
  path: '/v1/chat/completions',
  body,
  status,
});
const tokenize = (name: string, body: object, status = 400): HostileBody => ({ name, path: '/tokenize', body, status });
const completion = (name: string, prompt: unknown): HostileBody => ({
  name,
  path: '/v1/completions',
  body: { prompt },
  status: 400,
});

export const HOSTILE_BODIES: readonly HostileBody[] = [
  chat('65,535 messages', { messages: repeat(65_535, () => ({ role: 'user', content: 'a' })) }),
  chat('8,000 messages', { messages: repeat(8_000, () => ({ role: 'user', content: 'a' })) }),
  // Below 64 KB, so the main thread parses them.
  chat('1,900 messages', { messages: repeat(1_900, () => ({ role: 'user', content: 'a' })) }),
  chat('a tool with 2,000 properties', {
    messages: USER,
    tools: toolWith(manyProperties(2_000)),
    tool_choice: 'required',
  }),
  chat(
    'a schema with 2,000 properties',
    { messages: USER, max_tokens: 1, response_format: jsonSchema(manyProperties(2_000)) },
    200,
  ),
  chat('65,535 parts', {
    messages: [{ role: 'user', content: repeat(65_535, () => ({ type: 'text', text: 'a' })) }],
  }),
  chat('16 MB of text', { messages: [{ role: 'user', content: 'abc '.repeat(4e6) }] }),
  completion('16 MB of text in a prompt', 'abc '.repeat(4e6)),
  completion(
    '5,000,000 token ids in a prompt',
    repeat(5_000_000, () => 1),
  ),
  chat('a tool with 130,000 properties', { messages: USER, tools: toolWith(manyProperties(130_000)) }),
  chat('a tool with 7,000 properties', {
    messages: USER,
    tools: toolWith(manyProperties(7_000)),
    tool_choice: 'required',
  }),
  chat('a schema with 130,000 properties', {
    messages: USER,
    response_format: jsonSchema(manyProperties(130_000)),
  }),
  chat('an enum of 100,000 values', { messages: USER, response_format: jsonSchema({ enum: repeat(1e5, String) }) }),
  chat('500,000 unknown objects', { messages: USER, max_tokens: 1, x: repeat(500_000, () => ({ a: 1 })) }, 200),
  chat('4 MB of text to truncate', {
    messages: [{ role: 'user', content: 'abc '.repeat(1e6) }],
    truncate_prompt_tokens: 10,
  }),
  tokenize('16 MB of text to tokenize', { prompt: 'abc '.repeat(4e6) }),
  tokenize('1 MB of text to tokenize', { prompt: 'abc '.repeat(250_000) }, 200),
  tokenize('1 MB of text to tokenize, with the texts', { prompt: 'abc '.repeat(250_000), return_token_strs: true }),
  tokenize(
    '60 KB of text to tokenize, with the texts',
    { prompt: 'abc '.repeat(15_000), return_token_strs: true },
    200,
  ),
  tokenize('65,535 messages to tokenize', { messages: repeat(65_535, () => ({ role: 'user', content: 'a' })) }),
  {
    name: '5,000,000 ids to detokenize',
    path: '/detokenize',
    body: { tokens: repeat(5_000_000, () => 11) },
    status: 400,
  },
  {
    name: '1,000,000 ids to detokenize',
    path: '/detokenize',
    body: { tokens: repeat(1_000_000, () => 11) },
    status: 200,
  },
  chat('300,000 template variables', { messages: USER, chat_template_kwargs: { x: repeat(3e5, (i) => ({ i })) } }),
];
