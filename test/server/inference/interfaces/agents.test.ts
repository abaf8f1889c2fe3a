/** Requests of the form that Codex and Claude Code send, and a scripted agent that works until its task is done. */
import type Anthropic from '@anthropic-ai/sdk';
import type OpenAI from 'openai';
import type { ResponseInputItem } from 'openai/resources/responses/responses';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Engine } from '../../../../ts';
import { fake } from '../../../fakes/fake-addon';
import { tinyModel } from '../../../fakes/tiny-model';
import { callText, loadTiny, log, type Served, serveTiny } from './support';

let engine: Engine;
let served: Served;

beforeAll(async () => {
  engine = await loadTiny();
  served = await serveTiny(engine);
});
beforeEach(() => {
  fake.reset();
  jest.clearAllMocks();
});
afterAll(async () => {
  await engine.close();
  await served.close();
});

/** About 20,000 tokens of a real tokenizer. */
const LONG_PROMPT = 'You are an agent that edits files and runs commands. '.repeat(1_600);

async function post(path: string, body: object, headers: Record<string, string>): Promise<Response> {
  return fetch(served.url + path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', ...headers },
    body: JSON.stringify(body),
  });
}

test('a request of Codex', async () => {
  let prompt = '';
  fake.answer = (given) => {
    prompt = given;
    return { text: callText('shell', { command: ['ls'] }) };
  };
  const message = (role: string, text: string) => ({ type: 'message', role, content: [{ type: 'input_text', text }] });
  const response = await post(
    '/v1/responses',
    {
      model: 'tiny',
      instructions: LONG_PROMPT,
      input: [
        message('developer', '<permissions instructions>Ask first.</permissions instructions>'),
        message('user', '<environment_context>\n  <cwd>/repo</cwd>\n</environment_context>'),
        message('user', 'List the files, then fix the bug.'),
        { type: 'reasoning', summary: [], content: null, encrypted_content: 'gAAAA' },
        { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'I look first.' }] },
        { type: 'function_call', name: 'shell', arguments: '{"command":["pwd"]}', call_id: 'call_1' },
        { type: 'function_call_output', call_id: 'call_1', output: '{"output":"/repo","metadata":{"exit_code":0}}' },
        {
          type: 'custom_tool_call',
          status: 'completed',
          call_id: 'call_2',
          name: 'apply_patch',
          input: '*** Begin Patch',
        },
        { type: 'custom_tool_call_output', call_id: 'call_2', output: 'Success' },
        message('developer', 'The sandbox is read-only now.'),
      ],
      tools: [
        {
          type: 'function',
          name: 'shell',
          description: 'Runs a command',
          strict: false,
          parameters: {
            type: 'object',
            properties: { command: { type: 'array', items: { type: 'string' } }, timeout_ms: { type: 'number' } },
            required: ['command'],
            additionalProperties: false,
          },
        },
        {
          type: 'custom',
          name: 'apply_patch',
          description: 'Edits files. Do not wrap the patch in JSON.',
          format: { type: 'grammar', syntax: 'lark', definition: 'start: begin_patch hunk+ end_patch' },
        },
        { type: 'web_search', external_web_access: false },
        { type: 'image_generation', output_format: 'png' },
        { type: 'namespace', name: 'mcp__docs', tools: [{ type: 'function', name: 'find' }] },
      ],
      tool_choice: 'auto',
      parallel_tool_calls: true,
      reasoning: { effort: 'medium', summary: 'auto' },
      store: false,
      stream: true,
      include: ['reasoning.encrypted_content'],
      prompt_cache_key: '0199-session',
      text: { verbosity: 'low' },
      client_metadata: { 'x-codex-installation-id': 'abc' },
    },
    {
      Authorization: 'Bearer any',
      'OpenAI-Beta': 'responses=experimental',
      originator: 'codex_cli_rs',
      session_id: 's',
    },
  );
  const text = await response.text();
  expect(response.status).toBe(200);
  expect(text).toContain('event: response.completed\n');
  expect(text).toContain('"call_id":"call_');
  expect(prompt).toMatch(/^<\|im_start\|>system\n.*"name": ?"shell"/);
  expect(prompt).toContain('start: begin_patch');
  expect(prompt).toContain('<permissions instructions>Ask first.');
  expect(prompt).not.toContain('web_search');
  // Instructions of the developer beside the beginning are the user's, because templates refuse other system messages.
  expect(prompt).toContain('<|im_start|>user\nThe sandbox is read-only now.');
  expect(prompt.match(/<\|im_start\|>system/g)).toHaveLength(2);
  expect(log.info).toHaveBeenCalledTimes(1);
});

test('a request of Claude Code', async () => {
  let prompt = '';
  fake.answer = (given) => {
    prompt = given;
    return { text: '<think>\nso\n</think>\n\nDone.' };
  };
  const cached = { cache_control: { type: 'ephemeral', ttl: '1h' } };
  const text = (value: string, further = {}) => ({ type: 'text', text: value, ...further });
  const body = (accounting: string) => ({
    model: 'tiny',
    max_tokens: 32_000,
    system: [
      text(`x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=${accounting};`),
      text("You are Claude Code, Anthropic's official CLI for Claude.", cached),
      text(LONG_PROMPT, cached),
    ],
    messages: [
      {
        role: 'user',
        content: [text('<system-reminder>\nToday is Monday.\n</system-reminder>'), text('Fix the bug.', cached)],
      },
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 'Two files.', signature: 'EqQBCg==' },
          { type: 'redacted_thinking', data: 'EmwKAhgB' },
          text('I read both.'),
          { type: 'tool_use', id: 'toolu_1', name: 'Read', input: { file_path: '/a' } },
          { type: 'tool_use', id: 'toolu_2', name: 'Read', input: { file_path: '/b' } },
        ],
      },
      {
        role: 'user',
        content: [
          { type: 'tool_result', tool_use_id: 'toolu_1', content: 'one' },
          { type: 'tool_result', tool_use_id: 'toolu_2', is_error: true, content: [text('two')], ...cached },
        ],
      },
      { role: 'system', content: '<total_tokens>5000000 tokens left</total_tokens>' },
    ],
    tools: [
      {
        name: 'Read',
        description: 'Reads a file',
        input_schema: {
          $schema: 'https://json-schema.org/draft/2020-12/schema',
          type: 'object',
          properties: { file_path: { type: 'string' } },
          required: ['file_path'],
          additionalProperties: false,
        },
        eager_input_streaming: true,
      },
      { type: 'web_search_20250305', name: 'web_search', max_uses: 8 },
    ],
    metadata: { user_id: 'user_abc_account__session_1' },
    thinking: { type: 'adaptive' },
    context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
    output_config: { effort: 'medium' },
    stream: true,
  });
  const send = async (accounting: string) => {
    const response = await post('/v1/messages', body(accounting), {
      'x-api-key': 'any',
      'anthropic-version': '2023-06-01',
      'anthropic-beta': 'claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27',
      'anthropic-dangerous-direct-browser-access': 'true',
    });
    expect(response.status).toBe(200);
    const events = await response.text();
    expect(events).toContain('"stop_reason":"end_turn"');
    expect(events).toContain('"type":"signature_delta"');
    return prompt;
  };
  const first = await send('fa690');
  expect(first).not.toContain('x-anthropic-billing-header');
  expect(first).toContain('assistant\nI read both.<think>Two files.</think><tool_call>');
  expect(first).toContain('<tool_response>one</tool_response>');
  expect(first).toContain('<tool_response>Error: two</tool_response>');
  expect(first).toContain('<|im_start|>user\n<total_tokens>5000000 tokens left</total_tokens>');
  // The accounting line changes with each request. The prompt stays the same, so the prefix cache finds it.
  expect(await send('71fea')).toBe(first);
});

test('Codex calls a tool of a namespace, as which it sends the tools of an MCP server', async () => {
  const prompts: string[] = [];
  fake.answer = (prompt) => {
    prompts.push(prompt);
    return { text: callText('mcp__docs__find', { query: 'cats' }) + callText('mcp__docs__patch', { input: 'a' }) };
  };
  const question = { role: 'user', content: 'Find cats.' };
  const find = { type: 'function', name: 'find', description: null, parameters: { type: 'object', properties: {} } };
  const request = {
    model: 'tiny',
    tools: [
      { type: 'function', name: 'find', parameters: { type: 'object', properties: {} } },
      {
        type: 'namespace',
        name: 'mcp__docs',
        description: 'Tools in the mcp__docs namespace.',
        tools: [find, { type: 'custom', name: 'patch' }, { type: 'web_search' }],
      },
    ],
  };
  const send = (fields: object) => post('/v1/responses', { ...request, ...fields }, {});
  const first = (await (await send({ input: [question] })).json()) as OpenAI.Responses.Response;
  expect(first.output).toMatchObject([
    { type: 'function_call', namespace: 'mcp__docs', name: 'find', arguments: '{"query":"cats"}' },
    { type: 'custom_tool_call', namespace: 'mcp__docs', name: 'patch', input: 'a' },
  ]);
  expect(prompts[0]).toContain('"name": "find"');
  expect(prompts[0]).toContain('"name": "mcp__docs__find"');
  expect(log.info).toHaveBeenCalledWith(
    expect.objectContaining({ types: ['web_search'] }),
    'left out tools of unsupported types',
  );

  const results = first.output.map((item) => ({
    type: `${item.type}_output`,
    call_id: (item as { call_id: string }).call_id,
    output: 'A page about cats.',
  }));
  // The calls are the same in a conversation that is sent and in one that is stored.
  await send({ input: [question, ...first.output, ...results] });
  await send({ previous_response_id: first.id, input: results });
  expect(prompts[1]).toContain('<tool_call>{"name": "mcp__docs__find", "arguments": {"query": "cats"}}</tool_call>');
  expect(prompts[2]).toBe(prompts[1]);

  const chosen = { type: 'function', namespace: 'mcp__docs', name: 'find' };
  await send({ input: 'Hi', tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [chosen] } });
  expect(prompts[3].match(/"name": "\w+"/g)).toEqual(['"name": "mcp__docs__find"']);
  expect((await send({ input: 'Hi', tool_choice: chosen })).status).toBe(200);
});

test.each([
  [{ type: 'namespace', tools: [] }, 'tools[0].name'],
  [{ type: 'namespace', name: 'docs', tools: [{ type: 'function' }] }, 'tools[0].tools[0].name'],
  [
    {
      type: 'namespace',
      name: 'docs',
      tools: [{ type: 'custom', name: 'find', format: { syntax: 'regex', definition: '(' } }],
    },
    'tools[0].tools[0].format.definition',
  ],
])('an invalid namespace names the place: %j', async (tool, param) => {
  const response = await post('/v1/responses', { model: 'tiny', input: 'Hi', tools: [tool] }, {});
  expect(response.status).toBe(400);
  const { error } = (await response.json()) as { error: { param: string } };
  expect(error.param).toBe(param);
});

test('two tools whose names coincide for the model are refused', async () => {
  const tools = [
    { type: 'function', name: 'docs__find' },
    { type: 'namespace', name: 'docs', tools: [{ type: 'function', name: 'find' }] },
  ];
  const response = await post('/v1/responses', { model: 'tiny', input: 'Hi', tools }, {});
  expect(response.status).toBe(400);
  expect(await response.json()).toMatchObject({ error: { code: 'invalid_value', param: 'tools[1].tools[0].name' } });
});

test('Claude Code finds deferred tools by its own tool search', async () => {
  const prompts: string[] = [];
  fake.answer = (prompt) => {
    prompts.push(prompt);
    return { text: 'ok' };
  };
  const tool = (name: string, further = {}) => ({ name, input_schema: { type: 'object', properties: {} }, ...further });
  const tools = [
    tool('ToolSearch'),
    tool('WebFetch', { defer_loading: true }),
    tool('mcp__docs__find', { defer_loading: true }),
    tool('Write'),
  ];
  const question = { role: 'user', content: 'Find cats.' };
  const search = [
    { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'ToolSearch', input: { query: 'docs' } }] },
    {
      role: 'user',
      content: [
        {
          type: 'tool_result',
          tool_use_id: 'toolu_1',
          content: [
            { type: 'tool_reference', tool_name: 'mcp__docs__find' },
            { type: 'tool_reference', tool_name: 'gone' },
          ],
        },
      ],
    },
  ];
  const send = (messages: object[], further = {}) =>
    post('/v1/messages', { model: 'tiny', max_tokens: 100, tools, messages, ...further }, {});
  expect((await send([question])).status).toBe(200);
  expect((await send([question, ...search])).status).toBe(200);
  const namesIn = (prompt: string) => prompt.match(/(?<="function": {"name": ")\w+/g);
  expect(namesIn(prompts[0])).toEqual(['ToolSearch', 'Write']);
  // Found tools come last, so the prompt before them stays the same.
  expect(namesIn(prompts[1])).toEqual(['ToolSearch', 'Write', 'mcp__docs__find']);
  expect(prompts[1]).toContain('<tool_response>Found the tool mcp__docs__find.\nFound the tool gone.</tool_response>');

  const choice = { tool_choice: { type: 'tool', name: 'WebFetch' } };
  expect((await send([question, ...search], choice)).status).toBe(400);
});

test('several user messages in a row are one turn, for templates that demand alternation', async () => {
  const template = readFileSync(join(__dirname, '../../../oracle/templates/mistral-v3.jinja'), 'utf8');
  const loaded = await Engine.load(
    tinyModel({ 'tokenizer_config.json': { eos_token: '<|im_end|>', bos_token: '', chat_template: template } }),
  );
  const other = await serveTiny(loaded);
  const prompts: string[] = [];
  fake.answer = (prompt) => {
    prompts.push(prompt);
    return { text: 'ok' };
  };
  const answer = { role: 'assistant', content: 'It is sunny.' } as const;
  const first = await other.openai.responses.create({
    model: 'tiny',
    input: [
      { role: 'developer', content: 'Be brief.' },
      { role: 'user', content: '<environment_context/>' },
      { role: 'user', content: [{ type: 'input_text', text: 'The weather?' }] },
      answer,
      { role: 'developer', content: 'Be kind.' },
      { role: 'user', content: 'Thanks.' },
    ],
  });
  // The turn that is stored and the one that is sent do not meet.
  await other.openai.responses.create({ model: 'tiny', previous_response_id: first.id, input: 'Bye.' });
  await other.anthropic.messages.create({
    model: 'tiny',
    max_tokens: 10,
    messages: [
      { role: 'user', content: 'One' },
      { role: 'user', content: [{ type: 'text', text: 'Two' }] },
      answer,
      { role: 'user', content: 'Three' },
    ],
  });
  expect(prompts[0]).toMatch(
    /^\[INST\] ?<environment_context\/>\nThe weather\?\[\/INST\] It is sunny\.<\|im_end\|>\[INST\] ?Be brief\.\n\nBe kind\.\nThanks\.\[\/INST\]$/,
  );
  expect(prompts[1]).toMatch(/Thanks\.\[\/INST\] ok<\|im_end\|>\[INST\].*Bye\.\[\/INST\]$/s);
  expect(prompts[2]).toMatch(/^\[INST\] ?One\nTwo\[\/INST\]/);
  await other.close();
  await loaded.close();
});

describe('a scripted agent', () => {
  let folder: string;

  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'capstan-agent-'));
    writeFileSync(join(folder, 'sum.js'), 'module.exports = (a, b) => a - b;\n');
    writeFileSync(
      join(folder, 'check.js'),
      "if (require('./sum.js')(2, 3) !== 5) { console.log('sum is wrong'); process.exit(1); }\nconsole.log('all good');\n",
    );
    fake.answer = (prompt) => ({ text: nextStep(prompt) });
  });
  afterEach(() => rmSync(folder, { recursive: true }));

  /** The model: it decides by what the tools have answered so far. */
  function nextStep(prompt: string): string {
    const results = [...prompt.matchAll(/<tool_response>(.*?)<\/tool_response>/gs)].map(([, result]) => result);
    const last = results.at(-1);
    if (last === undefined)
      return `<think>\nFirst I look.\n</think>\n\nI run the check and read the file.\n${callText('command', { program: 'node', args: ['check.js'] })}\n${callText('file', { path: 'sum.js' })}`;
    if (last.includes('a - b'))
      return `It subtracts.\n${callText('file', { path: 'sum.js', content: last.replace('a - b', 'a + b') })}`;
    if (last === 'written') return callText('command', { program: 'node', args: ['check.js'] });
    return last.includes('all good') ? 'The sum is right now.' : 'I give up.';
  }

  function runTool(name: string, { path, content, args }: { path: string; content?: string; args: string[] }): string {
    if (name === 'file' && content === undefined) return readFileSync(join(folder, path), 'utf8');
    if (name === 'file') {
      writeFileSync(join(folder, path), content!);
      return 'written';
    }
    try {
      return execFileSync(process.execPath, args, { cwd: folder, encoding: 'utf8' });
    } catch (error) {
      return (error as { stdout: string }).stdout;
    }
  }

  const FILE = {
    type: 'object',
    properties: { path: { type: 'string' }, content: { type: 'string' } },
    required: ['path'],
  };
  const COMMAND = {
    type: 'object',
    properties: { program: { type: 'string' }, args: { type: 'array', items: { type: 'string' } } },
    required: ['program', 'args'],
  };
  const TASK = 'Make check.js pass.';
  const MAX_TURNS = 10;

  async function overResponses(isStored: boolean): Promise<string> {
    const tools: OpenAI.Responses.Tool[] = [
      { type: 'function', name: 'file', parameters: FILE, strict: false },
      { type: 'function', name: 'command', parameters: COMMAND, strict: false },
      { type: 'web_search' },
    ];
    let input: ResponseInputItem[] = [{ role: 'user', content: TASK }];
    let previous: string | undefined;
    for (let turn = 0; turn < MAX_TURNS; turn++) {
      const response = await served.openai.responses
        .stream({
          model: 'tiny',
          input,
          tools,
          store: isStored,
          ...(previous === undefined ? {} : { previous_response_id: previous }),
        })
        .finalResponse();
      const results = response.output.flatMap((item): ResponseInputItem[] =>
        item.type === 'function_call'
          ? [
              {
                type: 'function_call_output',
                call_id: item.call_id,
                output: runTool(item.name, JSON.parse(item.arguments) as never),
              },
            ]
          : [],
      );
      if (results.length === 0) return response.output_text;
      if (isStored) previous = response.id;
      input = isStored ? results : [...input, ...(response.output as ResponseInputItem[]), ...results];
    }
    return 'too many turns';
  }

  async function overMessages(): Promise<string> {
    const tools = [
      { name: 'file', input_schema: FILE },
      { name: 'command', input_schema: COMMAND },
    ] as Anthropic.Tool[];
    const messages: Anthropic.MessageParam[] = [{ role: 'user', content: TASK }];
    for (let turn = 0; turn < MAX_TURNS; turn++) {
      const { content, stop_reason: reason } = await served.anthropic.messages
        .stream({
          model: 'tiny',
          max_tokens: 1000,
          messages,
          tools,
          thinking: { type: 'enabled', budget_tokens: 1024 },
        })
        .finalMessage();
      messages.push({ role: 'assistant', content });
      if (reason !== 'tool_use') return content.map((block) => (block.type === 'text' ? block.text : '')).join('');
      messages.push({
        role: 'user',
        content: content.flatMap((block) =>
          block.type === 'tool_use'
            ? [
                {
                  type: 'tool_result' as const,
                  tool_use_id: block.id,
                  content: runTool(block.name, block.input as never),
                },
              ]
            : [],
        ),
      });
    }
    return 'too many turns';
  }

  test.each([
    ['/v1/responses, with whole conversations', () => overResponses(false)],
    ['/v1/responses, with stored responses', () => overResponses(true)],
    ['/v1/messages', overMessages],
  ])('finishes its task over %s', async (_name, run) => {
    expect(await run()).toBe('The sum is right now.');
    expect(readFileSync(join(folder, 'sum.js'), 'utf8')).toBe('module.exports = (a, b) => a + b;\n');
    expect(fake.requests).toHaveLength(4);
  });
});
