// The official openai package from npm.
import assert from 'node:assert/strict';
import { baseURL, embedderURL, keys, rejects, run, weatherParameters } from './checks.mjs';
import OpenAI from 'openai';
import { VERSION } from 'openai/version';

const make = (apiKey) => new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const client = make(keys.good);
const question = [{ role: 'user', content: 'What is Capstan?' }];
const weather = [{ role: 'user', content: 'What is the weather in Paris?' }];
const tools = [
  {
    type: 'function',
    function: {
      name: 'get_weather',
      description: 'Get the current weather for a location.',
      parameters: weatherParameters,
    },
  },
];
const ask = (body = {}, of = client) =>
  of.chat.completions.create({ model: 'demo', messages: question, temperature: 0, ...body });
const schema = {
  type: 'object',
  properties: { name: { type: 'string', maxLength: 12 }, age: { type: 'integer', minimum: 0, maximum: 150 } },
  required: ['name', 'age'],
  additionalProperties: false,
};

await run(`openai ${VERSION} (npm)`, {
  models: async () =>
    assert.deepEqual(
      (await client.models.list()).data.map(({ id }) => id),
      ['demo'],
    ),
  chat: async () => assert.match((await ask()).choices[0].message.content, /Capstan/),
  stream: async () => {
    let text = '';
    for await (const chunk of await ask({ messages: [{ role: 'user', content: 'Count from 1 to 5.' }], stream: true }))
      text += chunk.choices[0]?.delta.content ?? '';
    assert.equal(text, '1, 2, 3, 4, 5');
  },
  'tools, round trip': async () => {
    const {
      choices: [first],
    } = await ask({ messages: weather, tools });
    assert.deepEqual(JSON.parse(first.message.tool_calls[0].function.arguments), { city: 'Paris' });
    const {
      choices: [second],
    } = await ask({
      messages: [
        ...weather,
        first.message,
        { role: 'tool', tool_call_id: first.message.tool_calls[0].id, content: '{"temperature": 21}' },
      ],
      tools,
    });
    assert.match(second.message.content, /21/);
  },
  'tools, streamed': async () => {
    const final = await client.chat.completions
      .stream({ model: 'demo', messages: weather, tools, temperature: 0 })
      .finalChatCompletion();
    assert.deepEqual(JSON.parse(final.choices[0].message.tool_calls[0].function.arguments), { city: 'Paris' });
  },
  'tools, run by the client': async () => {
    const runner = client.chat.completions.runTools({
      model: 'demo',
      messages: weather,
      temperature: 0,
      tools: [
        {
          type: 'function',
          function: { ...tools[0].function, parse: JSON.parse, function: () => '{"temperature": 21}' },
        },
      ],
    });
    assert.match(await runner.finalContent(), /21/);
  },
  'tools, required and named': async () => {
    for (const choice of ['required', { type: 'function', function: { name: 'get_weather' } }]) {
      const {
        choices: [{ message }],
      } = await ask({
        messages: [{ role: 'user', content: 'Hello!' }],
        tools,
        tool_choice: choice,
        temperature: 0,
        max_tokens: 200,
      });
      assert.deepEqual(Object.keys(JSON.parse(message.tool_calls[0].function.arguments)), ['city']);
    }
  },
  'structured output': async () => {
    const {
      choices: [
        {
          message: { parsed },
        },
      ],
    } = await client.chat.completions.parse({
      model: 'demo',
      messages: [{ role: 'user', content: 'Extract as JSON: Anna is 31 years old.' }],
      temperature: 0,
      response_format: { type: 'json_schema', json_schema: { name: 'person', schema, strict: true } },
    });
    assert.deepEqual(Object.keys(parsed), ['name', 'age']);
  },
  completions: async () =>
    assert.ok(
      (await client.completions.create({ model: 'demo', prompt: 'Once upon', max_tokens: 5, temperature: 0 }))
        .choices[0].text,
    ),
  embeddings: async () => {
    const embedder = new OpenAI({ baseURL: embedderURL, apiKey: 'any', maxRetries: 0 });
    const input = ['What is Capstan?', 'Größe 😀'];
    // The client asks for base64, unless the request names a format.
    const { data, usage } = await embedder.embeddings.create({ model: 'embedder', input });
    const floats = await embedder.embeddings.create({ model: 'embedder', input, encoding_format: 'float' });
    assert.deepEqual(
      data.map(({ embedding }) => embedding),
      floats.data.map(({ embedding }) => embedding),
    );
    assert.deepEqual([data[1].embedding.length, usage.prompt_tokens], [64, Buffer.byteLength(input.join(''))]);
    const { results } = await embedder.post('/rerank', { body: { query: input[0], documents: input.toReversed() } });
    assert.deepEqual(
      results.map(({ index }) => index),
      [1, 0],
    );
    await rejects(client.embeddings.create({ model: 'demo', input }), {
      constructor: OpenAI.BadRequestError,
      code: 'unsupported_task',
    });
  },
  'error 400': () =>
    rejects(ask({ temperature: 5 }), {
      constructor: OpenAI.BadRequestError,
      param: 'temperature',
      code: 'invalid_value',
    }),
  'error 401': () =>
    rejects(ask({}, make(keys.unknown)), { constructor: OpenAI.AuthenticationError, code: 'invalid_api_key' }),
  'error 403': () =>
    rejects(ask({}, make(keys.foreign)), { constructor: OpenAI.PermissionDeniedError, code: 'permission_denied' }),
  'error 404': () => rejects(ask({ model: 'other' }), { constructor: OpenAI.NotFoundError, code: 'model_not_found' }),
  'error 429': () =>
    rejects(
      (async () => {
        for (let i = 0; i < 2; i++) await ask({ max_tokens: 1 }, make(keys.spent));
      })(),
      { constructor: OpenAI.RateLimitError },
    ),
});
