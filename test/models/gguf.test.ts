/** Serves a GGUF file with the CLI and talks to it with the official OpenAI client. */
import { join } from 'node:path';
import OpenAI from 'openai';
import { Engine } from '../../ts/index';
import { killAll, prepare, startServer } from '../fakes/server-process';

const fixtures = join(__dirname, '../oracle/fixtures');
const messages = [{ role: 'user' as const, content: 'the anchor' }];

describe('capstan serve FILE.gguf', () => {
  let client: OpenAI;

  beforeAll(async () => {
    prepare();
    const server = await startServer([join(fixtures, 'gguf/llama31-f16-00001-of-00003.gguf')], {});
    client = new OpenAI({ baseURL: `${server.url}/v1`, apiKey: 'any', maxRetries: 0 });
  });
  afterAll(killAll);

  test('names the model after the file, with the context length of its metadata', async () => {
    const { data } = await client.models.list();
    expect(data).toMatchObject([{ id: 'llama31-f16', max_model_len: 1024 }]);
  });

  test('renders the template of the file and gives the text of the model directory', async () => {
    const engine = await Engine.load(join(fixtures, 'llama31-f16'), {
      chatTemplate: '{% for message in messages %}{{ message.content }}{% endfor %}',
    });
    const expected = await engine.chat(messages, { temperature: 0, maxTokens: 12 }).result();
    await engine.close();
    const { choices, usage } = await client.chat.completions.create({
      model: 'llama31-f16',
      messages,
      temperature: 0,
      max_tokens: 12,
    });
    expect(choices[0].message.content).toBe(expected.choices[0].text);
    expect(usage!.prompt_tokens).toBe(expected.usage.promptTokens);
  });

  test('refuses a prompt beyond the context length of the file', async () => {
    const prompt = 'anchor '.repeat(1_500);
    await expect(client.completions.create({ model: 'llama31-f16', prompt })).rejects.toMatchObject({
      status: 400,
      code: 'context_length_exceeded',
    });
  });
});
