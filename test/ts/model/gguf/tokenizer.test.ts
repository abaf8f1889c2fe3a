import { copyFileSync, existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { findCharsmapFault } from '../../../../ts/model/gguf/charsmap';
import { TextService } from '../../../../ts/text/text-service';
import { TokenTable } from '../../../../ts/text/token-table';
import { charsmap } from '../../../fakes/charsmap';
import { changedMetadata, ggufBytes, type MetadataChanges, tinyGguf, writeGguf } from '../../../fakes/tiny-gguf';
import { tinyModel } from '../../../fakes/tiny-model';

const root = join(__dirname, '../../../oracle/fixtures/templates');
/** The file of Llama 2 has no template. */
const NO_TEMPLATE = '{{ messages[0].content }}';
const AUTO = { toolCallFormat: 'auto', reasoningFormat: 'auto' };

interface Golden {
  encode: { text: string; tokenIds: number[]; tokenIdsWithSpecial: number[]; decoded: string }[];
}

interface HfTokenizer {
  added_tokens: { id: number; content: string; special: boolean }[];
  model: { vocab: Record<string, number>; merges: [string, string][] };
}

function readJson<T>(family: string, name: string): T {
  return JSON.parse(readFileSync(join(root, family, name), 'utf8')) as T;
}

/** Writes the tokenizer of a family as GGUF holds it. */
function writeTokenizer(family: string, model: string, pre: string): string {
  const { added_tokens: added, model: bpe } = readJson<HfTokenizer>(family, 'tokenizer.json');
  const { chat_template: template, bos_token: bos } = readJson<Record<string, string | null>>(
    family,
    'tokenizer_config.json',
  );
  const jinja = join(root, family, 'chat_template.jinja');
  const tokens: string[] = [];
  for (const [token, id] of Object.entries(bpe.vocab)) tokens[id] = token;
  for (const { id, content } of added) tokens[id] = content;
  const types: number[] = Array.from(tokens, (token) => (token === undefined ? 5 : /^<0x..>$/.test(token) ? 6 : 1));
  for (const { id, special } of added) types[id] = special ? 3 : 4;
  for (let id = 0; id < tokens.length; id++) tokens[id] ??= `[PAD${id}]`;
  if (model !== 'gpt2') types[0] = 2;
  const changes: MetadataChanges = {
    'tokenizer.ggml.model': { string: model },
    'tokenizer.ggml.pre': { string: pre },
    'tokenizer.ggml.tokens': { strings: tokens },
    'tokenizer.ggml.token_type': { int32s: types },
    'tokenizer.ggml.merges': model === 'llama' ? null : { strings: bpe.merges.map((pair) => pair.join(' ')) },
    'tokenizer.ggml.scores': model === 'llama' ? { float32s: scoresOf(tokens, bpe.merges) } : null,
    'tokenizer.ggml.bos_token_id': typeof bos === 'string' ? { uint32: tokens.indexOf(bos) } : null,
    'tokenizer.ggml.add_bos_token': null,
    'tokenizer.ggml.eos_token_id': null,
    'tokenizer.chat_template': { string: existsSync(jinja) ? readFileSync(jinja, 'utf8') : (template ?? NO_TEMPLATE) },
  };
  return writeGguf(ggufBytes({ metadata: changedMetadata(changes) }));
}

/** Returns ids that a word and an added token share, as in the file of Llama 3.1. GGUF cannot express them. */
function sharedIds(family: string): Set<number> {
  const { added_tokens: added, model } = readJson<HfTokenizer>(family, 'tokenizer.json');
  const contents = new Map(added.map(({ id, content }) => [id, content]));
  const words = Object.entries(model.vocab);
  return new Set(words.filter(([word, id]) => (contents.get(id) ?? word) !== word).map(([, id]) => id));
}

async function encode(changes: MetadataChanges, text: string): Promise<number[]> {
  const service = await TextService.load({ modelPath: tinyGguf(changes), ...AUTO });
  return [...(await service.encode(text, { addSpecialTokens: true }))];
}

/** SentencePiece gives the token of an earlier merge a higher score. */
function scoresOf(tokens: readonly string[], merges: readonly [string, string][]): number[] {
  const ranks = new Map(merges.map(([left, right], rank) => [left + right, rank]));
  return tokens.map((token) => -(ranks.get(token) ?? 100_000));
}

describe.each([
  ['llama2', 'llama', 'default'],
  ['llama2', 'gemma4', 'gemma4'],
  ['llama3.1', 'gpt2', 'llama-bpe'],
  ['mistral-nemo', 'gpt2', 'tekken'],
  ['qwen2.5', 'gpt2', 'qwen2'],
  ['qwen3', 'gpt2', 'qwen2'],
  ['smollm2', 'gpt2', 'smollm'],
])('the tokenizer of %s as %s', (family, model, pre) => {
  let service: TextService;
  beforeAll(async () => {
    service = await TextService.load({ modelPath: writeTokenizer(family, model, pre), ...AUTO });
  });

  test('gives the tokens and texts of transformers', async () => {
    const shared = sharedIds(family);
    const all = readJson<Golden>(family, 'golden.json').encode;
    const encode = all.filter(({ tokenIds }) => !tokenIds.some((id) => shared.has(id)));
    expect(encode.length).toBeGreaterThan(10);
    const table = new TokenTable(service.traits.vocabulary);
    for (const { text, tokenIds, tokenIdsWithSpecial, decoded } of encode) {
      expect([...(await service.encode(text, { addSpecialTokens: false }))]).toEqual(tokenIds);
      expect([...(await service.encode(text, { addSpecialTokens: true }))]).toEqual(tokenIdsWithSpecial);
      expect(table.decode(tokenIds, false)).toBe(decoded);
    }
  });

  test('renders the chat template as from a directory', async () => {
    const directory = await TextService.load({ modelPath: join(root, family), ...AUTO });
    const conversation = { messages: [{ role: 'user', content: 'Hi!' } as const] };
    const rendered = await directory.render(conversation).catch(() => 'Hi!');
    expect(await service.render(conversation)).toBe(rendered);
    expect(service.traits.toolCallFormat).toBe(directory.traits.toolCallFormat);
  });
});

test('reads named chat templates', async () => {
  const path = tinyGguf({ 'tokenizer.chat_template.tool_use': { string: 'tools: {{ tools | length }}' } });
  const service = await TextService.load({ modelPath: path, ...AUTO });
  const conversation = { messages: [{ role: 'user', content: 'Hi' } as const] };
  expect(await service.render(conversation)).toContain('<|im_start|>user');
  expect(await service.render({ ...conversation, tools: [{}, {}] })).toBe('tools: 2');
});

describe('a WordPiece tokenizer', () => {
  const tokens = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '▁play', 'ing', '▁the', '▁.', '▁e', '▁!'];
  const bert = (changes: MetadataChanges = {}): MetadataChanges => ({
    'tokenizer.ggml.model': { string: 'bert' },
    'tokenizer.ggml.tokens': { strings: tokens },
    'tokenizer.ggml.token_type': { int32s: tokens.map((token) => (token.startsWith('[') ? 3 : 1)) },
    'tokenizer.ggml.bos_token_id': null,
    'tokenizer.ggml.cls_token_id': { uint32: 2 },
    'tokenizer.ggml.seperator_token_id': { uint32: 3 },
    'tokenizer.ggml.unknown_token_id': { uint32: 1 },
    'tokenizer.ggml.add_bos_token': null,
    'tokenizer.ggml.eos_token_id': null,
    ...changes,
  });

  test('splits words, drops case and accents, and frames the text', async () => {
    const service = await TextService.load({ modelPath: tinyGguf(bert()), ...AUTO });
    const ids = await service.encode('The playing É.', { addSpecialTokens: true });
    expect([...ids]).toEqual([2, 6, 4, 5, 8, 7, 3]);
    expect(new TokenTable(service.traits.vocabulary).decode([6, 4, 5, 7], true)).toBe('the playing .');
  });

  test('without a token for unknown words is refused', async () => {
    const changes = bert({ 'tokenizer.ggml.unknown_token_id': { uint32: 99 } });
    await expect(TextService.load({ modelPath: tinyGguf(changes), ...AUTO })).rejects.toThrow(
      'tokenizer.ggml.unknown_token_id: expected the id of a token, got 99',
    );
  });
});

describe('a Unigram tokenizer', () => {
  const tokens = ['<pad>', '</s>', '<unk>', '▁a', 'b', '▁', 'x'];
  const t5 = (changes: MetadataChanges = {}): MetadataChanges => ({
    'tokenizer.ggml.model': { string: 't5' },
    'tokenizer.ggml.tokens': { strings: tokens },
    'tokenizer.ggml.token_type': { int32s: [3, 3, 2, 1, 1, 1, 1] },
    'tokenizer.ggml.scores': { float32s: [0, 0, 0, -1, -2, -3, -4] },
    'tokenizer.ggml.eos_token_id': { uint32: 1 },
    'tokenizer.ggml.bos_token_id': null,
    'tokenizer.ggml.add_bos_token': null,
    ...changes,
  });

  test('picks the most likely tokens and ends with EOS', async () => {
    expect(await encode(t5(), 'ab  a')).toEqual([3, 4, 5, 3, 1]);
    expect(await encode(t5({ 'tokenizer.ggml.remove_extra_whitespaces': { bool: true } }), 'ab  a ')).toEqual([
      3, 4, 3, 1,
    ]);
  });

  test('replaces characters by its table', async () => {
    const changes = t5({ 'tokenizer.ggml.precompiled_charsmap': { uint8s: charsmap() } });
    expect(await encode(changes, 'a\u0001')).toEqual([3, 6, 1]);
  });

  test('skips an empty table', async () => {
    const changes = t5({ 'tokenizer.ggml.precompiled_charsmap': { uint8s: new Uint8Array() } });
    expect(await encode(changes, 'ab')).toEqual([3, 4, 1]);
  });

  test.each([
    ['a table without a size', new Uint8Array(2), 'no size'],
    ['a trie beyond the end', Uint8Array.of(255, 255, 255, 255, 0), 'a trie of 4294967295 bytes'],
    ['a node beyond the trie', Uint8Array.of(4, 0, 0, 0, 0, 0xff, 0xff, 0x7f, 65, 0), 'in a trie of 1 units'],
    ['a replacement beyond the end', charsmap(77), 'a replacement at 77 of 2 bytes'],
    ['replacements that are not UTF-8', Buffer.concat([charsmap(), Buffer.of(0xff)]), 'not UTF-8'],
  ])('refuses %s, which would end the process', async (_what, bytes, fault) => {
    expect(findCharsmapFault(bytes)).toContain(fault);
    await expect(encode(t5({ 'tokenizer.ggml.precompiled_charsmap': { uint8s: bytes } }), 'a')).rejects.toMatchObject({
      code: 'invalid_model',
    });
  });
});

test('a file without the name of a pre-tokenizer, or with an empty one, has the default', async () => {
  const [named, ...others] = await Promise.all(
    [{ string: 'default' }, { string: '' }, null].map((pre) => encode({ 'tokenizer.ggml.pre': pre }, "it's 12 a  b")),
  );
  expect(others).toEqual([named, named]);
});

test.each<[what: string, changes: MetadataChanges, code: string, message: string]>([
  [
    'an unknown pre-tokenizer',
    { 'tokenizer.ggml.pre': { string: 'kimi-k9' } },
    'unsupported_model',
    'tokenizer.ggml.pre: expected one of a.x-4.0, bailingmoe,',
  ],
  ['no tokens', { 'tokenizer.ggml.tokens': { strings: [] } }, 'invalid_model', 'an array of 1 to'],
  [
    'a token twice',
    { 'tokenizer.ggml.tokens': { strings: ['a', 'b', 'a'] } },
    'invalid_model',
    'each token once, got "a"',
  ],
  ['too few types', { 'tokenizer.ggml.token_type': { int32s: [1] } }, 'invalid_model', 'an array of 272 numbers'],
  ['no merges', { 'tokenizer.ggml.merges': null }, 'invalid_model', 'tokenizer.ggml.merges'],
  ['no scores', { 'tokenizer.ggml.model': { string: 'llama' } }, 'invalid_model', 'one score for each token'],
])('refuses %s', async (_what, changes, code, message) => {
  const path = tinyGguf(changes);
  await expect(TextService.load({ modelPath: path, ...AUTO })).rejects.toMatchObject({
    code,
    message: expect.stringContaining(message),
  });
});

test('refuses a SentencePiece vocabulary whose tokens are made of each other in too many ways', async () => {
  const tokens = Array.from({ length: 33 * 256 }, (_, i) =>
    String.fromCharCode(65 + Math.floor(i / 256)).repeat((i % 256) + 1),
  );
  const changes: MetadataChanges = {
    'tokenizer.ggml.model': { string: 'llama' },
    'tokenizer.ggml.tokens': { strings: tokens },
    'tokenizer.ggml.token_type': { int32s: tokens.map(() => 1) },
    'tokenizer.ggml.scores': { float32s: tokens.map(() => 0) },
    'tokenizer.ggml.eos_token_id': null,
    'tokenizer.ggml.bos_token_id': null,
  };
  await expect(TextService.load({ modelPath: tinyGguf(changes), ...AUTO })).rejects.toMatchObject({
    code: 'invalid_model',
    message: 'tiny.gguf: tokenizer.ggml.tokens: expected tokens with at most 1048576 merges, got more',
  });
});

test('a token twice is shown by its start', async () => {
  const token = `\u009b${'x'.repeat(100_000)}`;
  const { message } = await TextService.load({
    modelPath: tinyGguf({ 'tokenizer.ggml.tokens': { strings: [token, 'b', token] } }),
    ...AUTO,
  }).then(
    () => new Error('no error'),
    (error: Error) => error,
  );
  expect(message).toMatch(/token 2: expected each token once, got "\\u009bx{100,400}…", as token 0$/);
});

test('a file without a vocabulary uses the tokenizer files beside it', async () => {
  const path = tinyGguf({ 'tokenizer.ggml.model': { string: 'no_vocab' } });
  await expect(TextService.load({ modelPath: path, ...AUTO })).rejects.toThrow('tokenizer.json: expected the file');
  const beside = join(tinyModel({ 'config.json': null, 'model.safetensors': null }), 'tiny.gguf');
  copyFileSync(path, beside);
  const service = await TextService.load({ modelPath: beside, ...AUTO });
  expect([...(await service.encode('hi', { addSpecialTokens: true }))]).toEqual([104, 105]);
});

test('ignores merges of tokens that the file does not have', async () => {
  const changes = { 'tokenizer.ggml.merges': { strings: ['h i', 'q uux'] } };
  const service = await TextService.load({ modelPath: tinyGguf(changes), ...AUTO });
  expect([...(await service.encode('hi', { addSpecialTokens: true }))]).toEqual([104, 105]);
});
