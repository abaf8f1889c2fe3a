/** Serves the demo model with the CLI and talks to it with the official OpenAI client. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import OpenAI from 'openai';
import { killAll, prepare, type Running, startServer, TRANSPORTS } from '../fakes/server-process';

const tools: OpenAI.ChatCompletionTool[] = [
  {
    type: 'function',
    function: {
      name: 'get_weather',
      description: 'Get the current weather for a location.',
      parameters: {
        type: 'object',
        properties: { city: { type: 'string', description: 'City name' } },
        required: ['city'],
      },
    },
  },
];

/** Processor time of all threads of a process. The kernel counts it in hundredths of a second. */
function processorMs(pid: number): number {
  const [user, system] = readFileSync(`/proc/${pid}/stat`, 'utf8')
    .replace(/^.*\) /, '')
    .split(' ')
    .slice(11, 13);
  return (Number(user) + Number(system)) * 10;
}

describe.each(TRANSPORTS)('capstan serve demo over %s', (transport) => {
  let server: Running & { url: string };
  let client: OpenAI;
  let launchMs: number;

  beforeAll(async () => {
    prepare();
    server = await startServer(['demo', '--http-transport', transport], {});
    launchMs = processorMs(server.process.pid!);
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'any', maxRetries: 0 });
  });
  afterAll(killAll);

  // It takes about a second. Processor time does not depend on what else runs.
  test('listens after little processor time', () => expect(launchMs).toBeLessThan(5_000));

  test('the printed curl command gets an answer about Capstan', () => {
    const answer = execFileSync('sh', ['-c', /curl .*/.exec(server.output().stdout)![0]], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    expect((JSON.parse(answer) as OpenAI.ChatCompletion).choices[0].message.content).toContain('Capstan');
  });

  test('a stream has the same text as the complete response', async () => {
    const request = { model: 'demo', messages: [{ role: 'user' as const, content: 'Count from 1 to 12.' }] };
    const whole = await client.chat.completions.create(request);
    let text = '';
    for await (const chunk of await client.chat.completions.create({ ...request, stream: true }))
      text += chunk.choices[0].delta.content ?? '';
    expect(text).toBe(whole.choices[0].message.content);
    expect(text).toBe('1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12');
  });

  test('calls a tool and uses its result', async () => {
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'What is the weather in Paris?' }];
    const {
      choices: [first],
    } = await client.chat.completions.create({ model: 'demo', messages, tools });
    expect(first.finish_reason).toBe('tool_calls');
    const call = first.message.tool_calls![0] as OpenAI.ChatCompletionMessageFunctionToolCall;
    expect([call.function.name, JSON.parse(call.function.arguments)]).toEqual(['get_weather', { city: 'Paris' }]);
    messages.push(first.message, { role: 'tool', tool_call_id: call.id, content: '{"temperature": 21}' });
    const {
      choices: [second],
    } = await client.chat.completions.create({ model: 'demo', messages, tools });
    expect(second.finish_reason).toBe('stop');
    expect(second.message.content).toContain('21');
  });

  test('the text of a custom tool matches its regular expression', async () => {
    const grammar = { syntax: 'regex' as const, definition: '[A-Z]{3}-[0-9]{2}|none' };
    const { choices } = await client.chat.completions.create({
      model: 'demo',
      messages: [{ role: 'user', content: 'Call the tool code.' }],
      tools: [{ type: 'custom', custom: { name: 'code', format: { type: 'grammar', grammar } } }],
      tool_choice: 'required',
      parallel_tool_calls: false,
    });
    const calls = choices[0].message.tool_calls as OpenAI.Chat.ChatCompletionMessageCustomToolCall[];
    expect(calls.map(({ custom }) => custom)).toEqual([
      { name: 'code', input: expect.stringMatching(/^(?:[A-Z]{3}-[0-9]{2}|none)$/) },
    ]);
    for (const definition of ['(', 'a)|(b']) {
      const wrong = { type: 'grammar' as const, grammar: { ...grammar, definition } };
      await expect(
        client.chat.completions.create({
          model: 'demo',
          messages: [{ role: 'user', content: 'Hi' }],
          tools: [{ type: 'custom', custom: { name: 'code', format: wrong } }],
        }),
      ).rejects.toMatchObject({ code: 'invalid_value', param: 'tools[0].custom.format.grammar.definition' });
    }
  });

  test('64 concurrent streams have the same text as sequential ones', async () => {
    const questions = ['Hello!', 'What is Capstan?', 'Count from 1 to 20.', 'How do I start the server?'];
    const ask = async (i: number): Promise<string> => {
      let text = '';
      const stream = await client.chat.completions.create({
        model: 'demo',
        messages: [{ role: 'user', content: questions[i % 4] }],
        max_tokens: 4 + (i % 40),
        stream: true,
      });
      for await (const chunk of stream) text += chunk.choices[0].delta.content ?? '';
      return text;
    };
    const indices = Array.from({ length: 64 }, (_, i) => i);
    const together = await Promise.all(indices.map(ask));
    const alone: string[] = [];
    for (const i of indices) alone.push(await ask(i));
    expect(together).toEqual(alone);
  });

  test('exits with 0 on SIGINT', async () => {
    server.process.kill('SIGINT');
    expect(await server.exited).toEqual([0, null]);
  });
});
