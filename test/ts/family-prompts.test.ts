/** Prompts of templates that leave out tools or calls unless they come in the template's own way. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { type ChatMessage, Engine, type Tool } from '../../ts';
import { tinyModel } from '../fakes/tiny-model';

const { templates } = JSON.parse(
  gunzipSync(readFileSync(join(__dirname, '../oracle/fixtures/chat-templates.json.gz'))).toString(),
) as { templates: { name: string; source: string }[] };

/** As the template of SmolLM3 takes the tools, which the edition among the fixtures leaves out. */
const XML_TOOLS =
  "{% for t in xml_tools[:] %}{{ t | string }}{% endfor %}{{ '<tool_call>{\"name\": …}</tool_call>' }}{% for m in messages %}{{ '|' + m.role + ':' + m.content }}{% endfor %}";

const tools: Tool[] = [
  { type: 'function', function: { name: 'f', parameters: { type: 'object', properties: { a: {} } } } },
];
const args = { a: 'it\'s "x"', b: [1, true, null] };
const messages: ChatMessage[] = [
  { role: 'user', content: 'x' },
  {
    role: 'assistant',
    content: 'Hm.',
    toolCalls: [
      { name: 'f', arguments: args },
      { name: 'g', arguments: '{}' },
    ],
  },
  { role: 'tool', content: '1' },
];

async function render(source: string): Promise<string> {
  const engine = await Engine.load(tinyModel({ 'chat_template.jinja': source }));
  const prompt = await engine.renderChat(messages, { tools });
  await engine.close();
  return prompt;
}

beforeAll(() => {
  process.env.CAPSTAN_ADDON = require.resolve('../fakes/fake-addon');
});

test.each<[name: string, calls: string]>([
  [
    'LFM2-8B-A1B',
    String.raw`Hm.<|tool_call_start|>[f(a="it's \"x\"", b=[1, True, None]), g()]<|tool_call_end|><|im_end|>`,
  ],
  [
    'ibm-granite-granite-3.3-2B-Instruct',
    String.raw`Hm.<|tool_call|>[{"name": "f", "arguments": {"a": "it's \"x\"", "b": [1, true, null]}}, {"name": "g", "arguments": {}}]<|end_of_text|>`,
  ],
  [
    'microsoft-Phi-4-mini-instruct',
    String.raw`Hm.<|tool_call|>[{"name": "f", "arguments": {"a": "it's \"x\"", "b": [1, true, null]}}, {"name": "g", "arguments": {}}]<|/tool_call|><|end|>`,
  ],
])('calls that the template of %s leaves out stand in the content', async (name, calls) => {
  const prompt = await render(templates.find((template) => template.name === name)!.source);
  expect([prompt, prompt.includes(calls)]).toEqual([prompt, true]);
});

test('calls that the template writes stay where they are', async () => {
  const prompt = await render(templates.find(({ name }) => name === 'LFM2-v2')!.source);
  expect(prompt.split('<|tool_call_start|>')).toHaveLength(2);
});

test('Phi-4-mini gets the tools in a system message, in the form of Python', async () => {
  const prompt = await render(templates.find(({ name }) => name === 'microsoft-Phi-4-mini-instruct')!.source);
  const definition = '{"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}';
  expect(prompt.startsWith(`<|system|><|tool|>[${definition}]<|/tool|><|end|><|user|>x<|end|>`)).toBe(true);
});

test('SmolLM3 gets the tools by the name of its template', async () => {
  const prompt = await render(XML_TOOLS);
  expect(prompt).toContain("{'type': 'function', 'function': {'name': 'f',");
  expect(prompt).toContain('|assistant:Hm.<tool_call>\n{"name": "f", "arguments": {"a": "it\'s \\"x\\"", ');
});
