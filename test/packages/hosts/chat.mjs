// Chats with a server by the client of OpenAI, and once more as a stream. Returns the text; throws if the texts differ.
// Also creates a response, and deletes it if the server stores it.
import { strictEqual } from 'node:assert';
import OpenAI from 'openai';

export async function chat(baseURL, apiKey = 'unused') {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  const [model] = (await client.models.list()).data;
  const request = { model: model.id, temperature: 0, messages: [{ role: 'user', content: 'What is Capstan?' }] };
  const { choices } = await client.chat.completions.create(request);
  let streamed = '';
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    streamed += chunk.choices[0]?.delta.content ?? '';
  }
  strictEqual(streamed, choices[0].message.content);
  const response = await client.responses.create({ model: model.id, input: 'Hello!', max_output_tokens: 8 });
  if (response.store) await client.responses.delete(response.id);
  return streamed;
}

if (process.argv[1] === import.meta.filename) console.log(await chat(process.argv[2], process.argv[3]));
