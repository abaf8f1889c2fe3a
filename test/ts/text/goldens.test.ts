import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { ChatTemplate } from '../../../ts/text/chat-template';
import { type ChatMessage, type TemplateMessage, toTemplateMessage } from '../../../ts/text/messages';
import { TokenTable } from '../../../ts/text/token-table';
import { Tokenizer } from '../../../ts/text/tokenizer';

/** Generated with transformers; see test/oracle/README.md. */
interface Golden {
  conversations: {
    name: string;
    messages: (TemplateMessage & {
      tool_calls?: { id: string; function: { name: string; arguments: string | Record<string, unknown> } }[];
    })[];
    tools: unknown[] | null;
    addGenerationPrompt: boolean;
    chatTemplateKwargs: Record<string, unknown>;
    /** Absent if the template throws. */
    text?: string;
    tokenIds?: number[];
    error?: string;
  }[];
  encode: {
    text: string;
    tokenIds: number[];
    tokenIdsWithSpecial: number[];
    decoded: string;
    decodedSkipSpecial: string;
  }[];
  decode: { tokenIds: number[]; decoded: string; decodedSkipSpecial: string }[];
}

const root = join(__dirname, '../../oracle/fixtures/templates');

describe.each(readdirSync(root))('%s', (family) => {
  const golden = JSON.parse(readFileSync(join(root, family, 'golden.json'), 'utf8')) as Golden;
  let tokenizer: Tokenizer;
  let tokens: TokenTable;
  let template: ChatTemplate;

  beforeAll(async () => {
    tokenizer = await Tokenizer.load(join(root, family), new Set());
    tokens = new TokenTable(tokenizer.vocabulary);
    template = await ChatTemplate.load(join(root, family));
  });

  for (const {
    name,
    messages,
    tools,
    addGenerationPrompt,
    chatTemplateKwargs,
    text,
    tokenIds,
    error,
  } of golden.conversations) {
    test(`renders and tokenizes: ${name}`, async () => {
      const rendering = template.render(
        messages.map((message) => toTemplateMessage(fromWire(message), template.traits)),
        {
          ...(tools === null ? {} : { tools }),
          addGenerationPrompt,
          templateKwargs: chatTemplateKwargs,
        },
      );
      if (error !== undefined)
        return expect(rendering).rejects.toMatchObject({ code: 'template_error', message: `chat template: ${error}` });
      const rendered = await rendering;
      expect(rendered).toBe(text);
      expect([...(await tokenizer.encode(rendered, false))]).toEqual(tokenIds);
    });
  }

  test('encodes texts with and without special tokens', async () => {
    for (const { text, tokenIds, tokenIdsWithSpecial } of golden.encode) {
      expect([text, ...(await tokenizer.encode(text, false))]).toEqual([text, ...tokenIds]);
      expect([text, ...(await tokenizer.encode(text, true))]).toEqual([text, ...tokenIdsWithSpecial]);
    }
  });

  test('decodes encoded texts', () => {
    for (const { tokenIds, decoded, decodedSkipSpecial } of golden.encode) {
      expect(tokens.decode(tokenIds, false)).toBe(decoded);
      expect(tokens.decode(tokenIds, true)).toBe(decodedSkipSpecial);
    }
  });

  test('decodes arbitrary ids', () => {
    for (const { tokenIds, decoded, decodedSkipSpecial } of golden.decode) {
      // NOTE: with byte fallback, `tokenizers` replaces a run of bytes if one of them is invalid. Ours keeps the valid
      // ones.
      if (tokenizer.vocabulary.stripsLeadingSpace && decoded.includes('\ufffd')) continue;
      expect(tokens.decode(tokenIds, false)).toBe(decoded);
      expect(tokens.decode(tokenIds, true)).toBe(decodedSkipSpecial);
    }
  });
});

function fromWire(message: Golden['conversations'][0]['messages'][0]): ChatMessage {
  const { role, content, reasoning_content: reasoning, tool_call_id: toolCallId, tool_calls: toolCalls } = message;
  return {
    role,
    content,
    reasoning,
    toolCallId,
    toolCalls: toolCalls?.map(({ id, function: { name, arguments: args } }) => ({
      id,
      name,
      arguments: typeof args === 'string' ? args : JSON.stringify(args),
    })),
  } as ChatMessage;
}
