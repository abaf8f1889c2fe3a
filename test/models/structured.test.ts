/** Tests constrained generation with the demo model, at a temperature where unconstrained text is nearly random. */
import Ajv2020 from 'ajv/dist/2020';
import addFormats from 'ajv-formats';
import { type ChatOptions, Engine, type GenerationResult, type Tool } from '../../ts';
import { numCases } from '../fakes/sample';
import { SCHEMAS } from '../native/json-schema-cases';

// Unknown formats, such as zod's, are not checked.
// ajv divides doubles: without a precision it calls 2.53 no multiple of 0.001.
const ajv = new Ajv2020({ strict: false, allowUnionTypes: true, logger: false, multipleOfPrecision: 6 });
addFormats(ajv);

const SAMPLES = 12;
const SAMPLES_OF_SCHEMA = numCases(12, 4);
/** The samples take some 10 s of processor time, and the machine may be busy. */
const SAMPLES_TIMEOUT_MS = 240_000;
const messages = [{ role: 'user', content: 'What is the weather in Bern?' }] as const;
const THINKING_TEMPLATE =
  "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}{% if opens %}{{ '<think>\\n' }}{% endif %}{# </think> <tool_call> #}";

let engine: Engine;
let thinker: Engine;
beforeAll(async () => {
  engine = await Engine.load('demo', { maxQueuedRequests: SAMPLES_OF_SCHEMA * SCHEMAS.length });
  thinker = await Engine.load('demo', { chatTemplate: THINKING_TEMPLATE });
});
afterAll(() => Promise.all([engine.close(), thinker.close()]));

function ask(options: ChatOptions, on = engine): Promise<GenerationResult> {
  return on.chat(messages, { temperature: 1.5, maxTokens: 160, ...options }).result();
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

test(
  `${SAMPLES_OF_SCHEMA} samples of each schema are valid unless they are cut`,
  async () => {
    let numComplete = 0;
    await Promise.all(
      SCHEMAS.map(async ({ schema }) => {
        const validate = ajv.compile(schema as object | boolean);
        const { choices } = await ask({
          n: SAMPLES_OF_SCHEMA,
          seed: 7,
          structuredOutput: { type: 'json', schema: schema as Record<string, unknown> },
        });
        for (const { text, finishReason } of choices) {
          if (finishReason === 'length') continue;
          numComplete++;
          expect([schema, text, isJson(text) && validate(JSON.parse(text))]).toEqual([schema, text, true]);
        }
      }),
    );
    // Most samples must be complete for the check above to be meaningful.
    expect(numComplete).toBeGreaterThan(SCHEMAS.length * SAMPLES_OF_SCHEMA * 0.5);
  },
  SAMPLES_TIMEOUT_MS,
);

test('constrains text to an object, a pattern, a choice and a GBNF grammar', async () => {
  for (const { text, finishReason } of (await ask({ n: 5, structuredOutput: { type: 'json' } })).choices)
    if (finishReason === 'stop') expect(JSON.parse(text)).toEqual(expect.any(Object));
  for (const { text } of (await ask({ n: 5, structuredOutput: { type: 'regex', pattern: '(\\d{3}-){2}\\d{4}' } }))
    .choices)
    expect(text).toMatch(/^(\d{3}-){2}\d{4}$/);
  for (const { text } of (await ask({ n: 5, structuredOutput: { type: 'choice', choices: ['rot', 'grün'] } })).choices)
    expect(['rot', 'grün']).toContain(text);
  for (const { text } of (
    await ask({ n: 5, structuredOutput: { type: 'grammar', grammar: 'root ::= a "!"{1,3}\na ::= "yes" | "no"' } })
  ).choices)
    expect(text).toMatch(/^(yes|no)!{1,3}$/);
  const { choices } = await engine
    .generate('Bern is ', { temperature: 1.5, n: 5, structuredOutput: { type: 'regex', pattern: '[a-z]{3,9}' } })
    .result();
  for (const { text } of choices) expect(text).toMatch(/^[a-z]{3,9}$/);
});

describe('tool calls', () => {
  const city = { type: 'string', minLength: 1, maxLength: 12 };
  const parameters = {
    type: 'object',
    properties: { city, days: { type: 'integer', minimum: 1, maximum: 7 }, unit: { enum: ['C', 'F'] } },
    required: ['city', 'days'],
    additionalProperties: false,
  };
  const tools: Tool[] = [
    { type: 'function', function: { name: 'get_weather', parameters } },
    { type: 'function', function: { name: 'now' } },
    {
      type: 'function',
      function: {
        name: 'find_city',
        parameters: { type: 'object', properties: { name: city }, required: ['name'], additionalProperties: false },
      },
    },
  ];
  const validators = new Map(
    tools.map(({ function: { name, parameters: schema } }) => [
      name,
      ajv.compile(schema ?? { type: 'object', maxProperties: 0 }),
    ]),
  );

  function expectValid({ choices }: GenerationResult): void {
    for (const { toolCalls, finishReason, text } of choices) {
      const complete = finishReason === 'length' ? toolCalls.slice(0, -1) : toolCalls;
      for (const { name, arguments: args } of complete)
        expect([name, args, text, validators.get(name)?.(JSON.parse(args))]).toEqual([name, args, text, true]);
    }
  }

  test('that are required are present and valid', async () => {
    const result = await ask({ tools, toolChoice: 'required', n: SAMPLES });
    expectValid(result);
    for (const { toolCalls, text, finishReason } of result.choices) {
      expect([text, toolCalls.length > 0]).toEqual(['', true]);
      expect(['tool_calls', 'length']).toContain(finishReason);
    }
    const { choices } = await ask({
      tools,
      toolChoice: 'required',
      parallelToolCalls: false,
      n: SAMPLES,
      maxTokens: 400,
    });
    for (const { toolCalls, finishReason } of choices)
      expect([toolCalls.length, finishReason]).toEqual([1, 'tool_calls']);
  });

  test('that are named occur exactly once', async () => {
    const result = await ask({ tools, toolChoice: { name: 'find_city' }, n: SAMPLES, maxTokens: 400 });
    expectValid(result);
    for (const { toolCalls, text, finishReason } of result.choices)
      expect([text, toolCalls.map(({ name }) => name), finishReason]).toEqual(['', ['find_city'], 'stop']);
  });

  test('of strict tools match their schemas, and text is unconstrained', async () => {
    const strict = tools.map((tool) => ({ ...tool, function: { ...tool.function, strict: true } }));
    const result = await ask({ tools: strict, n: SAMPLES, temperature: 1 });
    expectValid(result);
    expect(result.choices.some(({ toolCalls }) => toolCalls.length > 0)).toBe(true);
  });

  test('end the choice after the first call without parallel calls', async () => {
    const asked = await ask({ tools, parallelToolCalls: false, temperature: 0, ignoreEos: true, maxTokens: 200 });
    expect(asked.choices[0]!.toolCalls).toHaveLength(1);
    expect(asked.choices[0]!.finishReason).toBe('tool_calls');
    expect(asked.usage.completionTokens).toBeLessThan(200);
  });
});

describe('reasoning', () => {
  const structuredOutput = { type: 'regex', pattern: '[0-9]{4}' } as const;

  test('closes at its budget, and the constrained text follows', async () => {
    for (const output of [structuredOutput, { type: 'grammar', grammar: 'root ::= [0-9]{4}' } as const]) {
      const { choices, usage } = await ask(
        { structuredOutput: output, thinkingBudget: 12, templateKwargs: { opens: true }, n: 5 },
        thinker,
      );
      for (const { text, reasoning, finishReason } of choices) {
        expect([text, finishReason]).toEqual([expect.stringMatching(/^[0-9]{4}$/), 'stop']);
        expect(reasoning).not.toContain('</think>');
      }
      // A character that has begun is completed first: up to three more tokens of one byte.
      expect(usage.reasoningTokens).toBeLessThanOrEqual(5 * (12 + 3));
    }
  });

  test('is not cut without a budget, and is optional before constrained text', async () => {
    const { choices } = await ask({ structuredOutput, n: 10 }, thinker);
    for (const { text, reasoning, finishReason } of choices) {
      if (finishReason === 'stop') expect(text).toMatch(/^[0-9]{4}$/);
      else expect(reasoning).not.toBe('');
    }
  });

  test('is empty with a budget of 0', async () => {
    const {
      choices: [choice],
      usage,
    } = await ask({ thinkingBudget: 0, templateKwargs: { opens: true }, maxTokens: 30 }, thinker);
    expect(choice).not.toHaveProperty('reasoning');
    expect(usage.reasoningTokens).toBe(0);
  });
});

test('never generates bad words', async () => {
  const plain = await engine.chat([{ role: 'user', content: 'Hello!' }], { temperature: 0, maxTokens: 20 }).result();
  const [word] = /[A-Za-z]+/.exec(plain.choices[0]!.text)!;
  const without = await engine
    .chat([{ role: 'user', content: 'Hello!' }], { temperature: 0, maxTokens: 20, badWords: [word] })
    .result();
  expect(without.choices[0]!.text.startsWith(word)).toBe(false);
});

test('maxTokens 0 scores every prompt token and generates nothing', async () => {
  const {
    choices: [choice],
    promptLogprobs,
    promptTokenIds,
    usage,
  } = await engine.generate('The sky was grey.', { maxTokens: 0, promptLogprobs: 1 }).result();
  expect(choice).toMatchObject({ text: '', tokenIds: [], finishReason: 'length' });
  expect(promptLogprobs).toHaveLength(promptTokenIds.length);
  expect(promptLogprobs![0]).toBeNull();
  expect(promptLogprobs!.slice(1).map((entry) => entry!.tokenId)).toEqual([...promptTokenIds.slice(1)]);
  expect(usage.completionTokens).toBe(0);
});
