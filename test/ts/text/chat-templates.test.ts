/** 79 real chat templates, rendered like transformers. `test/oracle/make_chat_templates.py` recorded the goldens. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { ChatTemplate } from '../../../ts/text/chat-template';
import { type ChatMessage, type TemplateMessage, type Tool, toTemplateMessage } from '../../../ts/text/messages';
import {
  effortVariables,
  findReasoningFormat,
  type ReasoningEffort,
  type ThinkingState,
} from '../../../ts/text/reasoning';
import { findToolCallFormat, ToolCallParser } from '../../../ts/text/tool-calls';
import { collect } from './tool-call-cases';

interface WireMessage {
  role: ChatMessage['role'];
  content: ChatMessage['content'];
  reasoning_content?: string;
  tool_call_id?: string;
  tool_calls?: { id: string; function: { name: string; arguments: string } }[];
}

interface Conversation {
  messages: WireMessage[];
  tools?: unknown[];
  addGenerationPrompt?: boolean;
  continueFinalMessage?: boolean;
}

interface Golden {
  conversations: Record<string, Conversation>;
  templates: { name: string; source: string; results: Record<string, { text?: string; error?: string }> }[];
}

const FIXTURE = join(__dirname, '../../oracle/fixtures/chat-templates.json.gz');
const { conversations, templates } = JSON.parse(gunzipSync(readFileSync(FIXTURE)).toString()) as Golden;

/** transformers prints a list of parts as Python text, drops it or refuses it. Ours joins the parts by line breaks. */
const TAKES_NO_PARTS = new Set([
  'Apertus-8B-Instruct',
  'Bielik-11B-v3.0-Instruct',
  'ByteDance-Seed-OSS',
  'CohereForAI-c4ai-command-r7b-12-2024-tool_use',
  'GigaChat3-10B-A1.8B',
  'GigaChat3.1-10B-A1.8B',
  'HuggingFaceTB-SmolLM3-3B',
  'LFM2-8B-A1B',
  'LFM2-v2',
  'LFM2.5-Instruct',
  'MiMo-VL',
  'NVIDIA-Nemotron-3-Nano-30B-A3B-BF16',
  'NVIDIA-Nemotron-Nano-v2',
  'Qwen-QwQ-32B',
  'Qwen-Qwen2.5-7B-Instruct',
  'Qwen-Qwen3-0.6B',
  'Qwen3-Coder',
  'Qwen3-Instruct-2507',
  'deepseek-ai-DeepSeek-R1-Distill-Llama-8B',
  'deepseek-ai-DeepSeek-R1-Distill-Qwen-32B',
  'deepseek-ai-DeepSeek-V3.1',
  'deepseek-ai-DeepSeek-V3.2',
  'deepseek-ai-DeepSeek-V4-Flash-0731',
  'deepseek-ai-DeepSeek-V4',
  'ibm-granite-granite-3.3-2B-Instruct',
  'inclusionai-ling-3.0-flash',
  'llama-cpp-deepseek-r1',
  'llama-cpp-rwkv-world',
  'meetkai-functionary-medium-v3.1',
  'meetkai-functionary-medium-v3.2',
  'meta-llama-Llama-3.1-8B-Instruct',
  'meta-llama-Llama-3.2-3B-Instruct',
  'meta-llama-Llama-3.3-70B-Instruct',
  'microsoft-Phi-3.5-mini-instruct',
  'microsoft-Phi-4-mini-instruct',
  'mistralai-Mistral-Nemo-Instruct-2407',
  'openai-gpt-oss-120b',
  'openbmb-MiniCPM5-1B',
  'poolside-Laguna-S-2.1',
  'poolside-Laguna-XS-2.1',
  'poolside-Laguna-XS.2',
  'upstage-Solar-Open-100B',
]);

/** Decided differences: the templates and conversations, a text that ours has instead, and the reason. */
const DIFFERENCES: [names: string[], kinds: string[], shows: string, reason: string][] = [
  [
    ['llama-cpp-deepseek-r1'],
    ['tools', 'call', 'calls'],
    '"name": "get_weather"',
    'transformers refuses `tools | map(…) | tojson`, because Python cannot write a generator as JSON. Ours writes a list.',
  ],
  [
    ['meetkai-functionary-medium-v3.1'],
    ['tools', 'call', 'calls'],
    '"name": "get_weather"',
    'In Jinja, text joined to a `safe` text is escaped, so transformers writes `&#34;` into the prompt. Ours does not.',
  ],
  [
    ['microsoft-Phi-4-mini-instruct'],
    ['tools', 'call', 'calls'],
    '<|tool|>[{"name": "get_weather"',
    'The template takes the tools from the system message, where transformers does not put them. Ours does.',
  ],
  [
    ['deepseek-ai-DeepSeek-R1-Distill-Llama-8B', 'deepseek-ai-DeepSeek-R1-Distill-Qwen-32B'],
    ['call', 'calls'],
    'function<｜tool▁sep｜>get_weather',
    'The templates drop or repeat a message with calls unless its content is null. Clients also send "", so ours is null.',
  ],
];

const compiled = new Map(
  templates.map(({ source }) => [
    source,
    new ChatTemplate(new Map([['default', source]]), { bos_token: '<s>', eos_token: '</s>' }),
  ]),
);

function toTemplate(
  message: WireMessage,
  template: ChatTemplate,
  toPromptId?: (id: string) => string,
): TemplateMessage {
  const { role, content, reasoning_content: reasoning, tool_call_id: toolCallId, tool_calls: toolCalls } = message;
  const written = {
    role,
    content,
    reasoning,
    toolCallId,
    toolCalls: toolCalls?.map(({ id, function: { name, arguments: args } }) => ({ id, name, arguments: args })),
  } as ChatMessage;
  return toTemplateMessage(written, template.traits, toPromptId);
}

async function render(source: string, { messages, ...options }: Conversation): Promise<string | undefined> {
  const template = compiled.get(source)!;
  const written = messages.map((message) => toTemplate(message, template));
  return template.render(written, options).catch((error: Error) => {
    expect(error).toMatchObject({ code: 'template_error' });
    return undefined;
  });
}

beforeAll(() => {
  jest.useFakeTimers({
    now: new Date(2026, 10, 23, 12),
    doNotFake: ['nextTick', 'setImmediate', 'setTimeout', 'setInterval', 'queueMicrotask', 'performance', 'hrtime'],
  });
});
afterAll(() => jest.useRealTimers());

test('the fixture has 79 templates and at least eight kinds of conversation', () => {
  expect(templates).toHaveLength(79);
  expect(Object.keys(conversations).length).toBeGreaterThanOrEqual(8);
});

describe.each(templates)('$name', ({ name, source, results }) => {
  test('the content of a message with calls may be null', async () => {
    const { messages, ...options } = conversations.call;
    const written = messages.map((message) => ({ ...message, content: message.tool_calls ? null : message.content }));
    expect(await render(source, { messages: written, ...options })).toBe(await render(source, conversations.call));
  });

  test.each(Object.keys(conversations))('%s', async (kind) => {
    const text = await render(source, conversations[kind]);
    const difference = DIFFERENCES.find(([names, kinds]) => names.includes(name) && kinds.includes(kind));
    if (kind === 'parts' && TAKES_NO_PARTS.has(name)) {
      expect(text).not.toBe(results.parts.text);
      expect(text).toBe(results.lines.text);
    } else if (difference !== undefined) {
      expect(text).not.toBe(results[kind].text);
      expect(text).toContain(difference[2]);
    } else {
      expect(text).toBe(results[kind].text);
    }
  });
});

/** The formats of calls that are detected. The others have none, or one that is not supported. */
const FORMATS: Record<string, string[]> = {
  harmony: ['openai-gpt-oss-120b'],
  apertus: ['Apertus-8B-Instruct'],
  cohere_command: ['Cohere2MoE', 'CohereForAI-c4ai-command-r7b-12-2024-tool_use'],
  gemma4: ['google-gemma-4-31B-it-interleaved', 'google-gemma-4-31B-it', 'google-gemma-4-v5'],
  seed_oss: ['ByteDance-Seed-OSS'],
  glm45: [
    'GLM-4.5',
    'GLM-4.6',
    'GLM-4.7-Flash',
    'Spark2.5',
    'inclusionai-ling-3.0-flash',
    'poolside-Laguna-S-2.1',
    'poolside-Laguna-XS-2.1',
    'poolside-Laguna-XS.2',
  ],
  hy3: ['tencent-Hy3'],
  granite: ['ibm-granite-granite-3.3-2B-Instruct'],
  phi4_mini_json: [
    'fireworks-ai-llama-3-firefunction-v2',
    'llama-cpp-Phi-4-mini-instruct',
    'microsoft-Phi-4-mini-instruct',
  ],
  hunyuan_a13b: ['Apriel-1.6-15b-Thinker-fixed', 'unsloth-Apriel-1.5'],
  lfm2: ['LFM2-8B-A1B', 'LFM2-v2', 'LFM2.5-8B-A1B', 'LFM2.5-Instruct'],
  qwen3_coder: [
    'NVIDIA-Nemotron-3-Nano-30B-A3B-BF16',
    'Qwen3-Coder',
    'Qwen3.5-4B',
    'Qwen3.6',
    'Qwen3.8',
    'StepFun3.5-Flash',
  ],
  hermes: [
    'Bielik-11B-v3.0-Instruct',
    'MiMo-VL',
    'NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use',
    'NousResearch-Hermes-3-Llama-3.1-8B-tool_use',
    'Qwen-QwQ-32B',
    'Qwen-Qwen2.5-7B-Instruct',
    'Qwen-Qwen3-0.6B',
    'Qwen3-Instruct-2507',
    'Reka-Edge',
    'ibm-granite-granite-4.0',
    'ibm-granite-granite-4.1',
  ],
  mistral_args: [
    'Mistral-Small-3.2-24B-Instruct-2506',
    'mistralai-Ministral-3-14B-Reasoning-2512',
    'unsloth-mistral-Devstral-Small-2507',
  ],
  mistral: ['mistralai-Mistral-Nemo-Instruct-2407'],
  deepseek_v3: [
    'deepseek-ai-DeepSeek-R1-Distill-Llama-8B',
    'deepseek-ai-DeepSeek-R1-Distill-Qwen-32B',
    'llama-cpp-deepseek-r1',
  ],
  deepseek_v31: ['deepseek-ai-DeepSeek-V3.1'],
  llama3_json: [
    'meta-llama-Llama-3.1-8B-Instruct',
    'meta-llama-Llama-3.2-3B-Instruct',
    'meta-llama-Llama-3.3-70B-Instruct',
  ],
};

test('detects the format of calls', () => {
  const found: Record<string, string[]> = {};
  for (const { name, source } of templates) {
    const format = findToolCallFormat('auto', (text) => source.includes(text))?.name;
    if (format !== undefined) (found[format] ??= []).push(name);
  }
  expect(found).toEqual(FORMATS);
});

/** Templates that leave out the calls of a conversation, or refuse them. */
const WRITES_NO_CALLS = [
  'fireworks-ai-llama-3-firefunction-v2',
  'ibm-granite-granite-3.3-2B-Instruct',
  'microsoft-Phi-4-mini-instruct',
  'LFM2-8B-A1B',
  'LFM2.5-Instruct',
];

const WRITTEN = Object.entries(FORMATS).flatMap(([format, names]) =>
  names.filter((name) => !WRITES_NO_CALLS.includes(name)).map((name) => [name, format]),
);

test.each(WRITTEN)('%s writes calls as %s reads them', async (name, formatName) => {
  const { source } = templates.find((template) => template.name === name)!;
  const template = compiled.get(source)!;
  const format = findToolCallFormat(formatName, () => false)!;
  const { messages, tools } = conversations.call;
  const shown = messages.slice(0, 2).map((message) => toTemplate(message, template, format.toPromptId));
  const options = { addGenerationPrompt: false, ...(tools === undefined ? {} : { tools }) };
  const whole = await template.render(shown, options);
  const start = whole.lastIndexOf('in Zürich?');
  const begin = formatName === 'harmony' ? '<|start|>assistant' : (format.syntax.unmarked?.first ?? format.syntax.open);
  const parser = new ToolCallParser(format, { tools: tools as Tool[] });
  const answer = collect([...parser.push(whole.slice(whole.indexOf(begin, start))), ...parser.end()]);
  const { name: called, arguments: args } = messages[1].tool_calls![0].function;
  const calls = answer.calls.map(([callName, text]) => [callName, JSON.parse(text) as unknown]);
  expect([whole, calls]).toEqual([whole, [[called, JSON.parse(args)]]]);
});

/** The formats of reasoning that are detected, besides `think`. */
const REASONING_FORMATS: Record<string, string[]> = {
  harmony: ['openai-gpt-oss-120b'],
  apertus: ['Apertus-8B-Instruct'],
  cohere_command: ['CohereForAI-c4ai-command-r7b-12-2024-tool_use'],
  cohere_command4: ['Cohere2MoE'],
  gemma4: ['google-gemma-4-31B-it-interleaved', 'google-gemma-4-31B-it', 'google-gemma-4-v5'],
  seed_oss: ['ByteDance-Seed-OSS'],
  hy3: ['tencent-Hy3'],
  mistral: ['mistralai-Ministral-3-14B-Reasoning-2512'],
  think_response: ['ibm-granite-granite-3.3-2B-Instruct'],
};

test('detects the format of reasoning', () => {
  const found: Record<string, string[]> = {};
  for (const { name, source } of templates) {
    const format = findReasoningFormat('auto', (text) => source.includes(text))?.name;
    if (format === 'think') expect([name, source.includes('</think>')]).toEqual([name, true]);
    else if (format !== undefined) (found[format] ??= []).push(name);
  }
  expect(found).toEqual(REASONING_FORMATS);
});

describe('the effort of reasoning', () => {
  const renderWith = async (
    name: string,
    effort: ReasoningEffort,
  ): Promise<[prompt: string, state?: ThinkingState]> => {
    const { source } = templates.find((template) => template.name === name)!;
    const mentions = (text: string): boolean => source.includes(text);
    const templateKwargs = effortVariables(effort, mentions);
    const prompt = await compiled.get(source)!.render([{ role: 'user', content: 'Hm?' }], { templateKwargs });
    return [prompt, findReasoningFormat('auto', mentions)?.stateAfter(prompt)];
  };

  test.each<[name: string, effort: ReasoningEffort, shows: string, state: ThinkingState]>([
    ['openai-gpt-oss-120b', 'none', 'Reasoning: low\n', 'before'],
    ['openai-gpt-oss-120b', 'medium', 'Reasoning: medium\n', 'before'],
    ['openai-gpt-oss-120b', 'max', 'Reasoning: high\n', 'before'],
    ['google-gemma-4-31B-it', 'high', '<|think|>', 'before'],
    ['google-gemma-4-31B-it', 'none', '<|channel>thought\n<channel|>', 'after'],
    ['ByteDance-Seed-OSS', 'none', '</seed:think>', 'after'],
    ['ByteDance-Seed-OSS', 'low', 'assistant', 'before'],
    ['tencent-Hy3', 'none', 'reasoning_effort:no_think', 'after'],
    ['tencent-Hy3', 'medium', 'reasoning_effort:high', 'inside'],
    ['GLM-4.6', 'none', '/nothink', 'after'],
    ['GLM-4.6', 'high', '<|assistant|>', 'before'],
    ['GLM-4.7-Flash', 'none', '</think>', 'after'],
    ['GLM-4.7-Flash', 'high', '<think>', 'inside'],
    ['Qwen3.5-4B', 'none', '<think>\n\n</think>', 'after'],
    ['Qwen3.5-4B', 'low', '<think>\n', 'inside'],
    ['Qwen3.8', 'none', '</think>', 'after'],
    ['Qwen3.8', 'minimal', 'set to low', 'inside'],
    ['Qwen3.8', 'high', 'set to xhigh', 'inside'],
    ['HuggingFaceTB-SmolLM3-3B', 'none', '/no_think', 'after'],
    ['HuggingFaceTB-SmolLM3-3B', 'high', '/think', 'before'],
    ['ibm-granite-granite-3.3-2B-Instruct', 'low', 'between <think></think>', 'before'],
    ['deepseek-ai-DeepSeek-V3.1', 'low', '<think>', 'inside'],
    ['deepseek-ai-DeepSeek-V3.1', 'none', '</think>', 'after'],
  ])('reaches the prompt of %s: %s', async (name, effort, shows, state) => {
    const [prompt, found] = await renderWith(name, effort);
    expect(prompt).toContain(shows);
    expect([prompt, found]).toEqual([prompt, state]);
  });
});
