/** POST /v1/chat/completions: the effect and the errors of every request field. */
import { CapstanError, type Engine } from '../../../../ts';
import type { App } from '../../../../server/inference/app';
import { DEFAULT_SETTINGS } from '../../../../server/inference/settings';
import { fake } from '../../../fakes/fake-addon';
import { TINY_TEMPLATE } from '../../../fakes/tiny-model';
import { errorOf, loadEngine, log, makeApp, type MemoryReply, MESSAGES, post, TOOLS } from './support';

let engine: Engine;
let app: App;

beforeAll(async () => {
  engine = await loadEngine({
    'tokenizer_config.json': {
      eos_token: '<|im_end|>',
      chat_template: `${TINY_TEMPLATE}{%- if enable_thinking is defined %}{{- '[' ~ enable_thinking ~ ' ' ~ reasoning_effort ~ ']' }}{%- endif %}`,
    },
  });
  app = makeApp(engine);
});
beforeEach(() => {
  fake.reset();
  fake.answer = () => ({ text: 'Hello.' });
  jest.clearAllMocks();
});
afterAll(() => engine.close());

const send = (body: object): Promise<MemoryReply> => post(app, '/v1/chat/completions', { messages: MESSAGES, ...body });
const prompt = () => engine.detokenize(fake.requests[0].promptTokenIds, { skipSpecialTokens: false });

describe('effect of a field', () => {
  test.each<[field: string, value: unknown, sampling: object]>([
    ['temperature', 0, { temperature: 0 }],
    ['temperature', 0.001, { temperature: 0.01 }],
    ['temperature', 2, { temperature: 2 }],
    ['top_p', 0.5, { topP: 0.5 }],
    ['top_p', 1, { topP: 1 }],
    ['top_k', -1, { topK: 0 }],
    ['top_k', 0, { topK: 0 }],
    ['top_k', 7, { topK: 7 }],
    ['min_p', 0.2, { minP: 0.2 }],
    ['presence_penalty', -2, { presencePenalty: -2 }],
    ['frequency_penalty', 2, { frequencyPenalty: 2 }],
    ['repetition_penalty', 1.5, { repetitionPenalty: 1.5 }],
    ['repeat_penalty', 1.5, { repetitionPenalty: 1.5 }],
    ['seed', 5, { seed: 5n }],
    ['seed', -1, { seed: null }],
    ['max_tokens', 3, { maxTokens: 3 }],
    ['max_completion_tokens', 3, { maxTokens: 3 }],
    ['min_tokens', 2, { minTokens: 2 }],
    ['stop', 'x', { stop: ['x'] }],
    ['stop', ['x', 'y'], { stop: ['x', 'y'] }],
    ['stop', [], { stop: [] }],
    ['stop_token_ids', [3], { stopTokenIds: new Int32Array([3]) }],
    ['ignore_eos', true, { ignoreEos: true }],
    ['include_stop_str_in_output', true, { includeStopInOutput: true }],
    ['skip_special_tokens', false, { skipSpecialTokens: false }],
    ['logit_bias', { 5: -100 }, { logitBiasIds: new Int32Array([5]), logitBiasValues: new Float32Array([-100]) }],
    ['allowed_token_ids', [1, 2], { allowedTokenIds: new Int32Array([1, 2]) }],
    ['prompt_logprobs', 2, { promptLogprobs: 2 }],
    ['logprobs', true, { logprobs: 0 }],
    ['logprobs', false, { logprobs: -1 }],
  ])('%s %j', async (field, value, sampling) => {
    expect((await send({ [field]: value })).status).toBe(200);
    expect(fake.requests[0].sampling).toMatchObject(sampling);
  });

  test.each<[field: string, value: unknown]>([
    ['user', 5],
    ['metadata', { a: 1 }],
    ['store', true],
    ['service_tier', 'auto'],
    ['safety_identifier', 'x'],
    ['prompt_cache_key', 'x'],
    ['verbosity', 'low'],
    ['modalities', ['text']],
    ['prediction', {}],
    ['kv_transfer_params', {}],
    ['vllm_xargs', {}],
    ['mm_processor_kwargs', {}],
    ['media_io_kwargs', {}],
    ['repetition_detection', 1],
    ['stream_interval', 3],
    ['logprob_token_ids', [1]],
    ['session_id', 'x'],
    ['cache_prompt', false],
    ['id_slot', 3],
    ['n_keep', 4],
    ['sse_ping_interval', 3],
    ['rid', 'x'],
    ['return_cached_tokens_details', true],
    ['never_heard_of', { x: [1] }],
    ['guided_decoding_backend', 'outlines'],
    ['tools', []],
    ['response_format', { type: 'text' }],
    ['parallel_tool_calls', true],
    ['priority', 0],
    ['echo', false],
    ['use_beam_search', false],
    ['length_penalty', 1],
    ['bad_words', []],
    ['documents', []],
    ['typical_p', 1],
    ['mirostat', 0],
    ['dry_multiplier', 0],
    ['xtc_probability', 0],
    ['n_probs', 0],
    ['timings_per_token', false],
    ['best_of', 1],
    ['spaces_between_special_tokens', false],
    ['tool_choice', 'none'],
    ['include_reasoning', true],
    ['reasoning_format', 'auto'],
    ['thinking_token_budget', -1],
    ['functions', []],
    ['function_call', 'none'],
    ['stream_options', null],
    ['tools', null],
    ['stop', null],
    ['structured_outputs', null],
    ['response_format', null],
    ['logit_bias', null],
    ['modalities', null],
    ['chat_template', null],
    ['prompt_logprobs', null],
    ['n', null],
    ['seed', null],
    ['guided_json', null],
    ['model', null],
    ['model', ''],
  ])('accepts %s %j', async (field, value) => {
    expect((await send({ [field]: value })).status).toBe(200);
  });

  test('keeps all digits of seeds above 2^53', async () => {
    for (const seed of ['9223372036854775807', '-9223372036854775808', '9007199254740993']) {
      expect(
        (await post(app, '/v1/chat/completions', `{"messages":[{"role":"user","content":"Hi"}],"seed":${seed}}`))
          .status,
      ).toBe(200);
      expect(fake.requests.at(-1)!.sampling.seed).toBe(BigInt(seed));
    }
    for (const seed of ['9223372036854775808', '-9223372036854775809', '1e30']) {
      const reply = await post(
        app,
        '/v1/chat/completions',
        `{"messages":[{"role":"user","content":"Hi"}],"seed":${seed}}`,
      );
      expect(errorOf(reply)).toMatchObject({ status: 400, code: 'invalid_value', param: 'seed' });
      expect(reply.json.error.message).toMatch(/^seed: expected a 64-bit integer, got -?\d+$/);
    }
  });

  test('truncate_prompt_tokens keeps the end or the beginning of the prompt', async () => {
    await send({ truncate_prompt_tokens: 4 });
    await send({ truncate_prompt_tokens: 4, truncation_side: 'right' });
    expect(
      fake.requests.map(({ promptTokenIds }) => engine.detokenize(promptTokenIds, { skipSpecialTokens: false })),
    ).toEqual(['ant\n', '<|im_start|>use']);
    await send({ messages: [{ role: 'user', content: 'x'.repeat(6000) }], truncate_prompt_tokens: -1, max_tokens: 96 });
    expect(fake.requests[2].promptTokenIds).toHaveLength(4000);
  });

  test('passes bad_words to the engine as tokens', async () => {
    await send({ bad_words: ['ab'] });
    expect(fake.requests[0].sampling.badWords.map((ids) => [...ids])).toContainEqual([97, 98]);
  });

  test('reasoning_effort sets template variables, which chat_template_kwargs override', async () => {
    await send({ reasoning_effort: 'none' });
    expect(prompt()).toContain('[False none]');
    fake.reset();
    await send({ reasoning_effort: 'none', chat_template_kwargs: { enable_thinking: true } });
    expect(prompt()).toContain('[True none]');
    fake.reset();
    await send({ reasoning_effort: 'high' });
    expect(prompt()).toContain('[True high]');
  });

  test("reasoning_effort overrides the server's default variables, but no others", async () => {
    const chat_template = '{{ [enable_thinking, reasoning_effort, other] }}';
    const templateKwargs = { enable_thinking: false, reasoning_effort: 'low', other: 1 };
    const other = await loadEngine({ 'tokenizer_config.json': { chat_template } });
    const settings = { ...DEFAULT_SETTINGS, templateKwargs };
    await post(makeApp(other, { settings }), '/v1/chat/completions', { messages: MESSAGES, reasoning_effort: 'high' });
    expect(prompt()).toBe("[True, 'high', 1]");
    await other.close();
  });

  test('continue_final_message leaves the last turn open', async () => {
    await send({
      messages: [...MESSAGES, { role: 'assistant', content: 'I am' }],
      continue_final_message: true,
      add_generation_prompt: false,
    });
    expect(prompt()).toMatch(/<\|im_start\|>assistant\nI am$/);
  });

  test('add_generation_prompt false ends with the messages', async () => {
    await send({ add_generation_prompt: false });
    expect(prompt()).toMatch(/Hi<\|im_end\|>\n$/);
  });

  test('functions and function_call are tools and tool_choice', async () => {
    fake.answer = () => ({ text: '<tool_call>{"name": "f", "arguments": {}}</tool_call>' });
    const { json } = await send({ functions: [TOOLS[0].function], function_call: 'auto' });
    expect(prompt()).toContain('{"type": "function", "function": {"name": "f"');
    expect(json.choices[0].message.tool_calls[0].function).toEqual({ name: 'f', arguments: '{}' });
  });

  test('the messages of older function calls are read', async () => {
    await send({
      messages: [
        ...MESSAGES,
        { role: 'assistant', content: null, function_call: { name: 'f', arguments: '{"a":1}' } },
        { role: 'function', name: 'f', content: 'r' },
      ],
    });
    expect(prompt()).toContain('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>');
    expect(prompt()).toContain('<tool_response>r</tool_response>');
  });

  test('a developer is a system where the template knows no better', async () => {
    await send({ messages: [{ role: 'developer', content: 'S' }, ...MESSAGES] });
    expect(prompt()).toContain('<|im_start|>system\nS');
  });

  test("cache_salt partitions the prefix cache within the partition of the key's owner", async () => {
    await send({ cache_salt: 's' });
    const access = { check: () => ({ ok: true as const, keyId: 'key_1', ownerId: 'own_1', done: () => {} }) };
    const body = { messages: MESSAGES, cache_salt: 's' };
    await post(makeApp(engine, { access }), '/v1/chat/completions', body);
    await post(makeApp(engine, { access }), '/v1/chat/completions', { messages: MESSAGES });
    await post(makeApp(engine, { access, prefixCacheScope: 'server' }), '/v1/chat/completions', body);
    expect(fake.requests.map(({ cacheSalt }) => cacheSalt)).toEqual(['s', 'own_1/s', 'own_1/', 's']);
  });

  test.each([false, true])('reports the tokens to the key check, streaming: %s', async (stream) => {
    const done = jest.fn();
    const access = { check: () => ({ ok: true as const, keyId: 'key_1', ownerId: 'own_1', done }) };
    await post(makeApp(engine, { access }), '/v1/chat/completions', { messages: MESSAGES, stream, n: 2 });
    expect(done.mock.calls[0]).toEqual([21 + 12]);
  });
});

describe('structured output', () => {
  const SCHEMA = { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] };

  test.each<[name: string, body: object, kind: string]>([
    ['json_object', { response_format: { type: 'json_object' } }, 'rules'],
    [
      'json_schema',
      { response_format: { type: 'json_schema', json_schema: { name: 'x', schema: SCHEMA, strict: true } } },
      'rules',
    ],
    ['a schema beside the type', { response_format: { type: 'json_schema', schema: SCHEMA } }, 'rules'],
    ['json_object with a schema', { response_format: { type: 'json_object', schema: SCHEMA } }, 'rules'],
    ['structured_outputs.json', { structured_outputs: { json: SCHEMA } }, 'rules'],
    ['its JSON text', { structured_outputs: { json: JSON.stringify(SCHEMA) } }, 'rules'],
    ['json_object of structured_outputs', { structured_outputs: { json_object: true } }, 'rules'],
    ['regex', { structured_outputs: { regex: 'a+' } }, 'rules'],
    ['choice', { structured_outputs: { choice: ['yes', 'no'] } }, 'rules'],
    ['grammar', { structured_outputs: { grammar: 'root ::= "a"', json: null } }, 'gbnf'],
    ['guided_json', { guided_json: SCHEMA }, 'rules'],
    ['guided_json as text', { guided_json: JSON.stringify(SCHEMA) }, 'rules'],
    ['guided_regex', { guided_regex: 'a' }, 'rules'],
    ['guided_choice', { guided_choice: ['a'] }, 'rules'],
    ['guided_grammar', { guided_grammar: 'root ::= "a"' }, 'gbnf'],
    [
      'beside tools that are left out',
      { response_format: { type: 'json_object' }, tools: TOOLS, tool_choice: 'none' },
      'rules',
    ],
    ['beside tools that may be called', { response_format: { type: 'json_object' }, tools: TOOLS }, 'rules'],
    [
      'beside a tool that has to be called',
      { guided_choice: ['a'], tools: TOOLS, tool_choice: { type: 'function', function: { name: 'f' } } },
      'rules',
    ],
  ])('by %s', async (_name, body, kind) => {
    expect((await send(body)).status).toBe(200);
    expect(fake.requests[0].grammar).toMatchObject({ source: { kind } });
  });

  test.each<[name: string, body: object, code: string, param: string]>([
    ['an unknown type', { response_format: { type: 'xml' } }, 'invalid_value', 'response_format'],
    ['no type', { response_format: {} }, 'missing_required_parameter', 'response_format'],
    ['no json_schema', { response_format: { type: 'json_schema' } }, 'missing_required_parameter', 'response_format'],
    [
      'no schema',
      { response_format: { type: 'json_schema', json_schema: { name: 'x' } } },
      'missing_required_parameter',
      'response_format',
    ],
    [
      'a schema that is none',
      { response_format: { type: 'json_schema', json_schema: { schema: 5 } } },
      'invalid_value',
      'response_format',
    ],
    [
      'a number beyond doubles',
      { response_format: { type: 'json_schema', json_schema: { schema: { maximum: 1e999 } } } },
      'invalid_value',
      'response_format',
    ],
    ['nothing asked for', { structured_outputs: {} }, 'invalid_value', 'structured_outputs'],
    ['two kinds', { structured_outputs: { choice: ['a'], regex: 'a' } }, 'invalid_value', 'structured_outputs'],
    [
      'a structural tag',
      { structured_outputs: { structural_tag: '{}' } },
      'unsupported_value',
      'structured_outputs.structural_tag',
    ],
    [
      'a rule for blanks',
      { structured_outputs: { json: {}, whitespace_pattern: ' ' } },
      'unsupported_value',
      'structured_outputs.whitespace_pattern',
    ],
    ['an empty choice', { structured_outputs: { choice: [] } }, 'invalid_value', 'structured_outputs'],
    ['a choice that is empty', { structured_outputs: { choice: [''] } }, 'invalid_value', 'structured_outputs'],
    ['a pattern that is none', { structured_outputs: { regex: '(' } }, 'invalid_value', 'structured_outputs'],
    ['a grammar without root', { structured_outputs: { grammar: 'x ::= "a"' } }, 'invalid_value', 'structured_outputs'],
    ['no JSON', { structured_outputs: { json: '{' } }, 'invalid_value', 'structured_outputs'],
    ['JSON too deep', { structured_outputs: { json: '['.repeat(1000) } }, 'invalid_value', 'structured_outputs'],
    ['guided_choice', { guided_choice: [] }, 'invalid_value', 'guided_choice'],
    ['guided_regex', { guided_regex: '(' }, 'invalid_value', 'guided_regex'],
    [
      'two fields',
      { guided_choice: ['a'], response_format: { type: 'json_object' } },
      'invalid_value',
      'guided_choice',
    ],
    [
      'a grammar beside tools that may be called',
      { guided_grammar: 'root ::= "a"', tools: TOOLS },
      'invalid_value',
      'guided_grammar',
    ],
  ])('%s is refused before anything runs', async (_name, body, code, param) => {
    // JSON.stringify knows no infinity.
    const text = JSON.stringify({ messages: MESSAGES, ...body }, (_key, value: unknown) =>
      value === Infinity ? '#' : value,
    ).replace('"#"', '1e999');
    expect(errorOf(await post(app, '/v1/chat/completions', text))).toEqual({
      status: 400,
      type: 'invalid_request_error',
      code,
      param,
    });
    expect(fake.requests).toHaveLength(0);
  });

  test.each<[structuredOutputs: object, message: string]>([
    [{ regex: 'a', whitespace_pattern: ' ' }, 'structured_outputs.whitespace_pattern: expected no value, got " "'],
    [
      { regex: 'a', disable_any_whitespace: true },
      'structured_outputs.disable_any_whitespace: expected no value, got true',
    ],
    [{}, 'structured_outputs: expected exactly one of json, json_object, regex, choice, grammar, got none'],
    [{ choice: [] }, 'structured_outputs.choice: expected an array of 1 to 10000 strings, none of them empty'],
  ])('%j names what is wrong', async (structuredOutputs, message) => {
    const reply = await send({ structured_outputs: structuredOutputs });
    expect(reply.json.error.message).toContain(message);
  });

  test.each<[field: string, make: (schema: object) => object]>([
    ['response_format', (schema) => ({ response_format: { type: 'json_schema', json_schema: { schema } } })],
    ['structured_outputs', (schema) => ({ structured_outputs: { json: schema } })],
    ['guided_json', (schema) => ({ guided_json: schema })],
  ])('%s: refuses an unsupported keyword and names its path', async (field, make) => {
    const reply = await send(make({ type: 'object', properties: { a: { type: 'array', contains: {} } } }));
    expect(errorOf(reply)).toMatchObject({ status: 400, code: 'unsupported_value', param: field });
    expect(reply.json.error.message).toContain(`${field}: JSON schema: `);
    expect(reply.json.error.message).toContain('/properties/a/contains');
  });
});

describe('errors of a field', () => {
  type Row = [name: string, body: object, code: string, param: string];
  const bad = (field: string, value: unknown, code = 'invalid_value', param = field): Row => [
    `${field} ${JSON.stringify(value)?.slice(0, 50)}`,
    { [field]: value },
    code,
    param,
  ];
  const numbers: [field: string, below: unknown, above: unknown][] = [
    ['temperature', -0.1, 2.1],
    ['top_p', 0, 1.1],
    ['min_p', -0.1, 1.1],
    ['presence_penalty', -2.1, 2.1],
    ['frequency_penalty', -2.1, 2.1],
    ['repetition_penalty', 0, undefined],
    ['top_k', -2, undefined],
    ['n', 0, 129],
    ['max_tokens', 0, undefined],
    ['max_completion_tokens', 0, undefined],
    ['min_tokens', -1, undefined],
    ['top_logprobs', -2, undefined],
    ['truncate_prompt_tokens', -2, undefined],
    ['prompt_logprobs', -2, 21],
    ['thinking_token_budget', -2, undefined],
  ];
  const booleans = [
    'stream',
    'logprobs',
    'ignore_eos',
    'include_stop_str_in_output',
    'skip_special_tokens',
    'spaces_between_special_tokens',
    'add_generation_prompt',
    'continue_final_message',
    'add_special_tokens',
    'parallel_tool_calls',
    'return_token_ids',
    'return_tokens_as_token_ids',
    'return_prompt_text',
    'include_reasoning',
    'separate_reasoning',
    'stream_reasoning',
  ];
  const unsupported: [field: string, value: unknown][] = [
    ['echo', true],
    ['chat_template', 'x'],
    ['documents', [{}]],
    ['priority', 1],
    ['use_beam_search', true],
    ['length_penalty', 2],
    ['modalities', ['audio']],
    ['audio', {}],
    ['web_search_options', {}],
    ['grammar', 'x'],
    ['json_schema', {}],
    ['dynatemp_range', 1],
    ['typical_p', 0.5],
    ['mirostat', 1],
    ['dry_multiplier', 1],
    ['xtc_probability', 0.5],
    ['top_n_sigma', 1],
    ['samplers', ['top_k']],
    ['n_probs', 1],
    ['repeat_last_n', 5],
    ['t_max_predict_ms', 5],
    ['timings_per_token', true],
    ['return_progress', true],
    ['regex', 'a'],
    ['ebnf', 'x'],
    ['stop_regex', 'a'],
    ['no_stop_trim', true],
    ['input_ids', [1]],
    ['lora_path', 'x'],
    ['best_of', 2],
    ['guided_whitespace_pattern', 'x'],
    ['logits_processors', [1]],
  ];

  test.each<Row>([
    ...numbers.flatMap(([field, below, above]) => [
      bad(field, below),
      ...(above === undefined ? [] : [bad(field, above)]),
      bad(field, '1', 'invalid_type'),
      bad(field, true, 'invalid_type'),
      bad(field, [1], 'invalid_type'),
      bad(field, {}, 'invalid_type'),
    ]),
    ...[
      'top_k',
      'n',
      'max_tokens',
      'max_completion_tokens',
      'min_tokens',
      'seed',
      'truncate_prompt_tokens',
      'prompt_logprobs',
      'thinking_token_budget',
      'top_logprobs',
    ].map((field) => bad(field, 1.5, 'invalid_type')),
    ...booleans.flatMap((field) => [bad(field, 'true', 'invalid_type'), bad(field, 1, 'invalid_type')]),
    ...unsupported.map(([field, value]) => bad(field, value, 'unsupported_value')),
    bad('model', 5, 'invalid_type'),
    bad('stop', ''),
    bad('stop', ['']),
    bad('stop', [5], 'invalid_type'),
    bad('stop', Array(1025).fill('x')),
    bad('stream_options', {}),
    bad('stream_options', 5, 'invalid_type'),
    [
      'stream_options.include_usage',
      { stream: true, stream_options: { include_usage: 'yes' } },
      'invalid_type',
      'stream_options.include_usage',
    ],
    bad('seed', '5', 'invalid_type'),
    bad('logit_bias', { x: 1 }),
    bad('logit_bias', { '1.5': 1 }),
    bad('logit_bias', { 5: 101 }),
    bad('logit_bias', { 5: '1' }, 'invalid_type'),
    bad('logit_bias', { 272: 1 }),
    bad('logit_bias', [], 'invalid_type'),
    bad('stop_token_ids', [272]),
    bad('stop_token_ids', [-1]),
    bad('stop_token_ids', ['x'], 'invalid_type'),
    bad('stop_token_ids', 5, 'invalid_type'),
    bad('allowed_token_ids', []),
    bad('allowed_token_ids', [272]),
    bad('bad_words', ['']),
    bad('bad_words', 'x', 'invalid_type'),
    bad('bad_words', [5], 'invalid_type'),
    bad('truncate_prompt_tokens', 0),
    bad('truncation_side', 'middle'),
    bad('top_logprobs', 2),
    ['top_logprobs over the limit', { logprobs: true, top_logprobs: 21 }, 'invalid_value', 'top_logprobs'],
    ['the whole vocabulary', { logprobs: true, top_logprobs: -1 }, 'invalid_value', 'top_logprobs'],
    ['prompt_logprobs in a stream', { stream: true, prompt_logprobs: 1 }, 'invalid_value', 'prompt_logprobs'],
    bad('tools', {}, 'invalid_type'),
    bad('tools', [5], 'invalid_type', 'tools[0]'),
    bad('tools', [{ type: 'function' }], 'missing_required_parameter', 'tools[0].function'),
    bad('tools', [{ type: 'function', function: {} }], 'missing_required_parameter', 'tools[0].function.name'),
    bad('tools', [...TOOLS, { type: 'function', function: { name: '' } }], 'invalid_value', 'tools[1].function.name'),
    bad('tools', [TOOLS[0], TOOLS[0]], 'invalid_value', 'tools[1].function.name'),
    bad('functions', [{ name: 'f' }, { name: 'g' }, { name: 'f' }], 'invalid_value', 'functions[2].name'),
    bad('tools', [{ type: 'web_search' }], 'invalid_value', 'tools[0].type'),
    bad('tools', [{ type: 'custom', function: { name: 'x' } }], 'missing_required_parameter', 'tools[0].custom'),
    bad('tools', [{ type: 'custom', custom: {} }], 'missing_required_parameter', 'tools[0].custom.name'),
    bad('tools', [{ type: 'custom', custom: { name: '' } }], 'invalid_value', 'tools[0].custom.name'),
    bad('tools', [TOOLS[0], { type: 'custom', custom: { name: 'f' } }], 'invalid_value', 'tools[1].custom.name'),
    bad('tools', [{ type: 'custom', custom: { name: 'c', format: 'text' } }], 'invalid_type', 'tools[0].custom.format'),
    ...(
      [
        [{ type: 'custom', id: 'a' }, '.custom'],
        [{ type: 'custom', id: 'a', custom: { name: 'c' } }, '.custom.input'],
        [{ id: 'a', custom: { name: 'c', input: '' } }, '.function'],
      ] as const
    ).map(([call, path]): Row => [
      `an earlier call ${JSON.stringify(call)}`,
      { messages: [{ role: 'assistant', tool_calls: [call] }] },
      'missing_required_parameter',
      `messages[0].tool_calls[0]${path}`,
    ]),
    bad(
      'tools',
      [{ type: 'function', function: { name: 'x', parameters: [] } }],
      'invalid_type',
      'tools[0].function.parameters',
    ),
    bad(
      'tools',
      [{ type: 'function', function: { name: 'x', strict: 1 } }],
      'invalid_type',
      'tools[0].function.strict',
    ),
    bad('functions', [{}], 'missing_required_parameter', 'functions[0].name'),
    ...['auto', 'required', { type: 'function', function: { name: 'f' } }].map((choice): Row => [
      `tool_choice ${JSON.stringify(choice)} without tools`,
      { tool_choice: choice },
      'invalid_value',
      'tool_choice',
    ]),
    ['an unknown tool_choice', { tools: TOOLS, tool_choice: 'some' }, 'invalid_value', 'tool_choice'],
    ['a tool_choice of a type', { tools: TOOLS, tool_choice: { type: 'x' } }, 'invalid_value', 'tool_choice'],
    ...(
      [
        [undefined, 'missing_required_parameter', ''],
        [{ mode: 'auto' }, 'missing_required_parameter', '.tools'],
        [{ mode: 'none', tools: [] }, 'invalid_value', '.mode'],
        [{ tools: [{ type: 'function', function: { name: 'g' } }] }, 'invalid_value', '.tools[0].function.name'],
        [{ tools: [{ type: 'function' }] }, 'invalid_value', '.tools[0].function.name'],
      ] as const
    ).map(([allowed, code, path]): Row => [
      `allowed_tools ${JSON.stringify(allowed)}`,
      { tools: TOOLS, tool_choice: { type: 'allowed_tools', allowed_tools: allowed } },
      code,
      `tool_choice.allowed_tools${path}`,
    ]),
    [
      'a tool that is absent',
      { tools: TOOLS, tool_choice: { type: 'function', function: { name: 'g' } } },
      'invalid_value',
      'tool_choice',
    ],
    [
      'a choice without a function',
      { tools: TOOLS, tool_choice: { type: 'function' } },
      'missing_required_parameter',
      'tool_choice.function.name',
    ],
    [
      'a choice without a custom tool',
      { tools: TOOLS, tool_choice: { type: 'custom' } },
      'missing_required_parameter',
      'tool_choice.custom.name',
    ],
    [
      'a custom tool that is absent',
      { tools: TOOLS, tool_choice: { type: 'custom', custom: { name: 'g' } } },
      'invalid_value',
      'tool_choice',
    ],
    bad('tool_choice', 5, 'invalid_type'),
    [
      'a function that is absent',
      { functions: [{ name: 'f' }], function_call: { name: 'g' } },
      'invalid_value',
      'function_call',
    ],
    bad('reasoning_effort', 'some'),
    bad('reasoning_format', 'some'),
    bad('chat_template_kwargs', 5, 'invalid_type'),
    bad('cache_salt', ''),
    bad('cache_salt', 'x'.repeat(129)),
    bad('cache_salt', 'a@b'),
    bad('cache_salt', 'a/b'),
    bad('cache_salt', 'a\\b'),
    bad('cache_salt', 'a\0b'),
    bad('cache_salt', 5, 'invalid_type'),
    bad('request_id', ''),
    bad('request_id', 'a b'),
    bad('request_id', 'a\r\nb'),
    bad('request_id', 'x'.repeat(129)),
    bad('max_tokens', 5000, 'context_length_exceeded'),
    bad('max_completion_tokens', 5000, 'context_length_exceeded'),
    ['min over max', { min_tokens: 5, max_tokens: 4 }, 'invalid_value', 'min_tokens'],
    ['n at temperature 0', { n: 2, temperature: 0 }, 'invalid_value', 'n'],
    [
      'both ways to go on',
      { add_generation_prompt: true, continue_final_message: true },
      'invalid_value',
      'continue_final_message',
    ],
    [
      'a prompt too long',
      { messages: [{ role: 'user', content: 'x'.repeat(5000) }] },
      'context_length_exceeded',
      'messages',
    ],
  ])('%s', async (_name, body, code, param) => {
    expect(errorOf(await send(body))).toEqual({ status: 400, type: 'invalid_request_error', code, param });
    expect(fake.requests).toHaveLength(0);
    expect(log.error).not.toHaveBeenCalled();
  });

  test('refuses numbers that overflow a double', async () => {
    for (const field of ['temperature', 'max_tokens', 'seed', 'top_k']) {
      const reply = await post(
        app,
        '/v1/chat/completions',
        `{"messages":[{"role":"user","content":"Hi"}],"${field}":1e999}`,
      );
      expect(errorOf(reply)).toMatchObject({ status: 400, param: field });
    }
  });

  test('checks types, ranges, contradictions, the model, the queue and the length in this order', async () => {
    const paramOf = async (body: object) => errorOf(await send(body)).param;
    expect(await paramOf({ temperature: 5, top_p: 'x', model: 'nope' })).toBe('top_p');
    expect(await paramOf({ temperature: 5, stream_options: {}, model: 'nope' })).toBe('temperature');
    expect(await paramOf({ stream_options: {}, model: 'nope' })).toBe('stream_options');
    expect(await paramOf({ model: 'nope', max_tokens: 5000 })).toBe('model');
  });

  test('refuses more alternatives than the server allows', async () => {
    const free = makeApp(engine, { settings: { ...DEFAULT_SETTINGS, maxLogprobs: -1, responseRole: 'bot' } });
    const { json } = await post(free, '/v1/chat/completions', { messages: MESSAGES, logprobs: true, top_logprobs: -1 });
    expect(fake.requests[0].sampling.logprobs).toBe(272);
    expect(json.choices[0].message.role).toBe('bot');
    const none = makeApp(engine, { settings: { ...DEFAULT_SETTINGS, maxLogprobs: 0 } });
    expect(
      errorOf(await post(none, '/v1/chat/completions', { messages: MESSAGES, logprobs: true, top_logprobs: 1 })).param,
    ).toBe('top_logprobs');
  });

  test('accepts thousands of tools and messages, up to the limit', async () => {
    const many = Array.from({ length: 3000 }, (_, i) => ({ type: 'function', function: { name: `f${i}` } }));
    const small = await send({ tools: many, truncate_prompt_tokens: 10 });
    expect(small.status).toBe(200);
    expect(errorOf(await send({ tools: Array(20_000).fill(TOOLS[0]) }))).toMatchObject({
      code: 'invalid_value',
      param: 'tools',
    });
    expect(errorOf(await send({ messages: Array(70_000).fill(MESSAGES[0]) }))).toMatchObject({
      code: 'invalid_value',
      param: 'messages',
    });
  });

  test('shortens values in error messages', async () => {
    const long = 'x'.repeat(1_000_000);
    for (const body of [
      { model: long },
      { temperature: long },
      { tool_choice: long, tools: TOOLS },
      { reasoning_effort: long },
      { messages: [{ role: long, content: '' }] },
      { logit_bias: { [long]: 1 } },
      { cache_salt: long },
      { structured_outputs: { json: long } },
      { response_format: { type: long } },
    ]) {
      expect((await send(body)).text.length).toBeLessThan(600);
    }
  });

  test('treats __proto__ as an unknown field', async () => {
    const reply = await post(
      app,
      '/v1/chat/completions',
      '{"__proto__":{"stream":true},"messages":[{"role":"user","content":"Hi","__proto__":{"role":"x"}}],"chat_template_kwargs":{"__proto__":{"a":1}}}',
    );
    expect([reply.status, reply.json.object]).toEqual([200, 'chat.completion']);
    expect(
      errorOf(
        await post(
          app,
          '/v1/chat/completions',
          '{"messages":[{"role":"user","content":"Hi"}],"logit_bias":{"__proto__":1}}',
        ),
      ).param,
    ).toBe('logit_bias');
    expect(({} as { a?: number }).a).toBeUndefined();
  });
});

test('answers 429 for a full queue before the conversation is rendered', async () => {
  const chat = jest.spyOn(engine, 'chat');
  jest.spyOn(engine, 'checkCapacity').mockImplementationOnce(() => {
    throw new CapstanError('queue_full', 'The queue is full');
  });
  const reply = await send({});
  expect(errorOf(reply)).toEqual({ status: 429, type: 'rate_limit_error', code: 'queue_full', param: null });
  expect(reply.headers['Retry-After']).toBe('1');
  expect(chat).not.toHaveBeenCalled();
  jest.restoreAllMocks();
});
