/** Random models with the real chat templates and special tokens of families: calls under a grammar, and reasoning. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import Ajv2020 from 'ajv/dist/2020';
import { Engine, type Tool } from '../../ts';
import { findReasoningFormat } from '../../ts/text/reasoning';
import { findToolCallFormat } from '../../ts/text/tool-calls';
import { TINY_CONFIG, tinyModel, tinyTokenizer } from '../fakes/tiny-model';

const FIRST_SPECIAL = 256;
const END_OF_TURN = '<end of turn>';
const { templates } = JSON.parse(
  gunzipSync(readFileSync(join(__dirname, '../oracle/fixtures/chat-templates.json.gz'))).toString(),
) as { templates: { name: string; source: string }[] };

const parameters = {
  type: 'object',
  properties: {
    n: { type: 'integer', minimum: 1, maximum: 99 },
    text: { type: 'string', maxLength: 4 },
    unit: { enum: ['a', 'b'] },
    list: { type: 'array', items: { type: 'boolean' }, maxItems: 2 },
  },
  required: ['n', 'text'],
  additionalProperties: false,
};
const tools: Tool[] = [{ type: 'function', function: { name: 'look', description: 'Looks.', parameters } }];
const isValid = new Ajv2020().compile(parameters);

/** Weights are zero, so every allowed token is equally likely. */
function familyModel(name: string): string {
  const { source } = templates.find((template) => template.name === name)!;
  const mentions = (text: string): boolean => source.includes(text);
  const formats = [findToolCallFormat('auto', mentions), findReasoningFormat('auto', mentions)];
  const isWord = (marker: string): boolean => /^[<[].*[>\]]$/.test(marker);
  const markers = new Set(formats.flatMap((format) => format?.markers ?? []).filter(isWord));
  const added = [END_OF_TURN, ...markers].map((content, i) => ({
    id: FIRST_SPECIAL + i,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  }));
  return tinyModel({
    'config.json': { ...TINY_CONFIG, max_position_embeddings: 16384 },
    'generation_config.json': { eos_token_id: FIRST_SPECIAL },
    'tokenizer.json': { ...tinyTokenizer(), added_tokens: added },
    'chat_template.jinja': source,
  });
}

describe.each([
  ['openai-gpt-oss-120b', 'harmony', 'harmony'],
  ['google-gemma-4-31B-it', 'gemma4', 'gemma4'],
  ['CohereForAI-c4ai-command-r7b-12-2024-tool_use', 'cohere_command', 'cohere_command'],
  ['Cohere2MoE', 'cohere_command', 'cohere_command4'],
  ['Apertus-8B-Instruct', 'apertus', 'apertus'],
  ['ByteDance-Seed-OSS', 'seed_oss', 'seed_oss'],
  ['GLM-4.6', 'glm45', 'think'],
  ['tencent-Hy3', 'hy3', 'hy3'],
  ['Qwen3.5-4B', 'qwen3_coder', 'think'],
  ['LFM2.5-8B-A1B', 'lfm2', 'think'],
  ['ibm-granite-granite-3.3-2B-Instruct', 'granite', 'think_response'],
  ['ibm-granite-granite-4.0', 'hermes', null],
  ['microsoft-Phi-4-mini-instruct', 'phi4_mini_json', null],
  ['unsloth-Apriel-1.5', 'hunyuan_a13b', null],
])('%s', (name, toolCallFormat, reasoningFormat) => {
  let engine: Engine;
  beforeAll(async () => {
    delete process.env.CAPSTAN_ADDON;
    engine = await Engine.load(familyModel(name), { device: 'cpu', maxModelLen: 16384 });
  });
  afterAll(() => engine.close());

  test('the formats are detected', () => {
    expect(engine.info).toMatchObject({ toolCallFormat, reasoningFormat });
  });

  test.each(['required', { name: 'look' }] as const)('a call that must come is valid: %j', async (toolChoice) => {
    const options = {
      tools,
      toolChoice,
      temperature: 1,
      maxTokens: 3500,
      thinkingBudget: 12,
      reasoningEffort: 'high',
    } as const;
    for (let seed = 1; seed <= 6; seed++) {
      const { choices } = await engine.chat([{ role: 'user', content: 'Hm?' }], { ...options, seed }).result();
      const [{ text, toolCalls, finishReason }] = choices;
      expect([seed, text, finishReason]).toEqual([seed, '', toolChoice === 'required' ? 'tool_calls' : 'stop']);
      expect(toolCalls.length).toBeGreaterThan(0);
      for (const call of toolCalls)
        expect([call, isValid(JSON.parse(call.arguments)), call.name]).toEqual([call, true, 'look']);
    }
  });

  test('calls of strict tools are valid, and calls take the place of a structured answer', async () => {
    const strict = tools.map((tool) => ({ ...tool, function: { ...tool.function, strict: true } }));
    const structuredOutput = { type: 'regex', pattern: '[a-d]{3}' } as const;
    const options = { temperature: 1, maxTokens: 1500, thinkingBudget: 12, reasoningEffort: 'high' } as const;
    const seen = new Set<string>();
    for (let seed = 1; seed <= 12; seed++) {
      const chosen = seed % 2 === 0 ? { tools: strict } : { tools, structuredOutput };
      const { choices } = await engine
        .chat([{ role: 'user', content: 'Hm?' }], { ...options, ...chosen, seed })
        .result();
      const [{ text, toolCalls, finishReason }] = choices;
      if (finishReason === 'length') continue;
      seen.add(toolCalls.length > 0 ? 'calls' : 'text');
      for (const call of toolCalls) expect([seed, isValid(JSON.parse(call.arguments))]).toEqual([seed, seed % 2 === 0]);
      if (seed % 2 === 1 && toolCalls.length === 0)
        expect([seed, text]).toEqual([seed, expect.stringMatching(/^[a-d]{3}$/)]);
    }
    expect(seen.size).toBeGreaterThan(0);
  });

  test('a structured answer is the text', async () => {
    const structuredOutput = { type: 'regex', pattern: '[a-d]{3}' } as const;
    const options = {
      structuredOutput,
      temperature: 1,
      maxTokens: 3500,
      thinkingBudget: 12,
      reasoningEffort: 'high',
    } as const;
    for (let seed = 1; seed <= 6; seed++) {
      const { choices } = await engine.chat([{ role: 'user', content: 'Hm?' }], { ...options, seed }).result();
      expect([seed, choices[0]]).toMatchObject([
        seed,
        { text: expect.stringMatching(/^[a-d]{3}$/) as string, finishReason: 'stop' },
      ]);
    }
  });
});
