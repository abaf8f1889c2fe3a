/** tokenizer.model and tekken.json give the ids of sentencepiece and tiktoken (test/oracle/make_tokenizers.py). */
import { cpSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { JsonReader, type JsonObject } from '../../../ts/model/json-file';
import { convertSentencePiece } from '../../../ts/model/sentencepiece-file';
import { convertTekken } from '../../../ts/model/tekken';
import { TextService } from '../../../ts/text/text-service';
import { TokenTable } from '../../../ts/text/token-table';

const root = join(__dirname, '../../oracle/fixtures/tokenizers');
const AUTO = { toolCallFormat: 'auto', reasoningFormat: 'auto' };

interface Case {
  text: string;
  tokenIds: number[];
  decoded: string;
}

describe.each(readdirSync(root))('%s', (name) => {
  const cases = JSON.parse(readFileSync(join(root, name, 'golden.json'), 'utf8')) as Case[];

  test('encodes and decodes', async () => {
    const service = await TextService.load({ modelPath: join(root, name), ...AUTO });
    const table = new TokenTable(service.traits.vocabulary);
    const encoded = await Promise.all(
      cases.map(async ({ text }) => {
        const tokenIds = [...(await service.encode(text, { addSpecialTokens: false }))];
        return { text, tokenIds, decoded: table.decode(tokenIds, false) };
      }),
    );
    expect(encoded).toEqual(cases);
  });
});

/** Returns a copy of a folder with other files in it. */
function folderWith(name: string, files: Record<string, string>): string {
  const folder = mkdtempSync(join(tmpdir(), 'capstan-tokenizer-'));
  cpSync(join(root, name), folder, { recursive: true });
  for (const [file, text] of Object.entries(files)) writeFileSync(join(folder, file), text);
  return folder;
}

const encodeIn = async (folder: string, text: string, addSpecialTokens: boolean): Promise<number[]> => {
  const service = await TextService.load({ modelPath: folder, ...AUTO });
  return [...(await service.encode(text, { addSpecialTokens }))];
};

test('a text begins with BOS, unless tokenizer_config.json says otherwise', async () => {
  const plain = await encodeIn(join(root, 'bpe'), 'The model', false);
  expect(await encodeIn(join(root, 'bpe'), 'The model', true)).toEqual([1, ...plain]);
  const config = JSON.stringify({ add_bos_token: false, add_eos_token: true });
  expect(await encodeIn(folderWith('bpe', { 'tokenizer_config.json': config }), 'The model', true)).toEqual([
    ...plain,
    2,
  ]);
  const [first] = await encodeIn(join(root, 'tekken'), 'The model', true);
  expect(first).toBe(1);
});

test('templates know the special tokens of the tokenizer', async () => {
  for (const name of ['bpe', 'tekken']) {
    const folder = folderWith(name, {
      'chat_template.jinja': '{{ bos_token }}{{ messages[0].content }}{{ eos_token }}',
    });
    const service = await TextService.load({ modelPath: folder, ...AUTO });
    expect(await service.render({ messages: [{ role: 'user', content: 'Hi' }] })).toBe('<s>Hi</s>');
  }
});

test('a template that is not used may be of any form', async () => {
  const folder = folderWith('bpe', {
    'chat_template.jinja': 'used',
    'tokenizer_config.json': JSON.stringify({ chat_template: { default: 'unused' } }),
  });
  const service = await TextService.load({ modelPath: folder, ...AUTO });
  expect(await service.render({ messages: [{ role: 'user', content: 'Hi' }] })).toBe('used');
});

test('tokens of added_tokens.json and tokenizer_config.json are found in the text', async () => {
  const config = JSON.stringify({ added_tokens_decoder: { 425: { content: '<|end|>', special: true } } });
  const files = { 'added_tokens.json': JSON.stringify({ '<|start|>': 421 }), 'tokenizer_config.json': config };
  const ids = await encodeIn(folderWith('bpe', files), '<|start|>The<|end|>', false);
  expect([ids[0], ids.at(-1)]).toEqual([421, 425]);
  const far = JSON.stringify({ '<|far|>': 2 ** 24 });
  await expect(encodeIn(folderWith('bpe', { 'added_tokens.json': far }), 'x', false)).rejects.toThrow(
    /added_tokens\.json: expected token ids from 0 to \d+, got 16777216/,
  );
});

describe('a damaged tokenizer.model', () => {
  const bytes = readFileSync(join(root, 'unigram-normalized', 'tokenizer.model'));
  const none = new JsonReader({}, 'none');
  const outcome = (changed: Uint8Array): string => {
    try {
      convertSentencePiece(changed, none, none);
      return 'converted';
    } catch (error) {
      return String((error as { code?: unknown }).code);
    }
  };

  test('is an error at any length, or a smaller vocabulary', () => {
    for (let length = 0; length < bytes.length; length += 7)
      expect(['converted', 'invalid_model', 'unsupported_model']).toContain(outcome(bytes.subarray(0, length)));
    expect(outcome(bytes.subarray(0, bytes.length - 1))).toBe('invalid_model');
  });

  test('is an error or another vocabulary with any changed byte', () => {
    for (let at = 0; at < bytes.length; at += 11) {
      const changed = Uint8Array.from(bytes);
      changed[at] ^= 0x55;
      expect(['converted', 'invalid_model', 'unsupported_model']).toContain(outcome(changed));
    }
  });

  test.each<[string, Uint8Array, RegExp]>([
    [
      'a number as text',
      Uint8Array.of(0x0a, 2, 0x08, 1),
      /tokenizer\.model: piece 0: expected a text, got the number 1/,
    ],
    ['a text as score', Uint8Array.of(0x0a, 3, 0x12, 1, 0x61), /tokenizer\.model: piece 0: expected a number as score/],
    ['a text as type', Uint8Array.of(0x0a, 3, 0x1a, 1, 0x61), /tokenizer\.model: piece 0: expected a number as score/],
  ])('with %s in a piece is an error that names the piece', (_name, model, message) => {
    const code = 'invalid_model';
    const expected = expect.objectContaining({ code, message: expect.stringMatching(message) as string });
    expect(() => convertSentencePiece(model, none, none)).toThrow(expected);
  });

  test('with an added token that is null names the token', () => {
    const config = new JsonReader({ added_tokens_decoder: { 3: null } }, 'tokenizer_config.json');
    const message = /tokenizer_config\.json: added_tokens_decoder: 3: expected an object with content, got nothing/;
    const expected = expect.objectContaining({
      code: 'invalid_model',
      message: expect.stringMatching(message) as string,
    });
    expect(() => convertSentencePiece(bytes, config, none)).toThrow(expected);
  });

  test('of words is refused', () => {
    // trainer_spec { model_type: WORD }, after a piece.
    const model = Uint8Array.of(0x0a, 3, 0x0a, 1, 0x61, 0x12, 2, 0x18, 3);
    expect(() => convertSentencePiece(model, none, none)).toThrow(/expected unigram or BPE, got model type 3/);
  });
});

describe('a tekken.json', () => {
  const tekken = JSON.parse(readFileSync(join(root, 'tekken', 'tekken.json'), 'utf8')) as {
    config: JsonObject;
    vocab: JsonObject[];
  };

  test('may list its special tokens', async () => {
    const special = [
      { rank: 1, token_str: '<s>', is_control: true },
      { rank: 7, token_str: '[X]', is_control: true },
    ];
    const folder = folderWith('tekken', { 'tekken.json': JSON.stringify({ ...tekken, special_tokens: special }) });
    expect(await encodeIn(folder, '[X]', true)).toEqual([1, 7]);
  });

  test.each<[string, JsonObject, RegExp]>([
    ['config', {}, /config: expected an object, but it is missing/],
    [
      'number of tokens',
      { ...tekken, config: { ...tekken.config, default_vocab_size: 20 } },
      /vocab: expected a list of at least 256/,
    ],
    ['vocabulary', { ...tekken, vocab: tekken.vocab.slice(0, 300) }, /vocab: expected a list of at least 460 tokens/],
    [
      'rank',
      { ...tekken, vocab: [...tekken.vocab.slice(1), tekken.vocab[0]] },
      /vocab: expected token 0 with its rank/,
    ],
    [
      'special token',
      { ...tekken, special_tokens: [{ rank: 24, token_str: 'x' }] },
      /special_tokens: expected tokens with a rank from 0 to 23/,
    ],
    ['pattern', { ...tekken, config: { ...tekken.config, pattern: 1 } }, /pattern: expected a string/],
  ])('without a valid %s is refused', (_name, json, message) => {
    expect(() => convertTekken(json)).toThrow(
      expect.objectContaining({ code: 'invalid_model', message: expect.stringMatching(message) }),
    );
  });
});
