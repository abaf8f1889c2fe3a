/** The table of characters in a tokenizer.json is checked before the tokenizer library follows it. */
import { TextService } from '../../../ts/text/text-service';
import { charsmap } from '../../fakes/charsmap';
import { tinyModel, tinyTokenizer } from '../../fakes/tiny-model';

function load(normalizer: unknown): Promise<TextService> {
  const json = { ...tinyTokenizer(), normalizer };
  return TextService.load({
    modelPath: tinyModel({ 'tokenizer.json': JSON.stringify(json) }),
    toolCallFormat: 'auto',
    reasoningFormat: 'auto',
  });
}

function precompiled(table: Uint8Array): object {
  return { type: 'Precompiled', precompiled_charsmap: Buffer.from(table).toString('base64') };
}

function sequence(...normalizers: object[]): object {
  return { type: 'Sequence', normalizers };
}

const BEYOND_THE_END = precompiled(charsmap(77));
const LOWERCASE = { type: 'Lowercase' };

test.each([
  ['alone', BEYOND_THE_END],
  ['in a sequence', sequence(LOWERCASE, BEYOND_THE_END)],
  ['in a sequence of a sequence', sequence(LOWERCASE, sequence(BEYOND_THE_END), LOWERCASE)],
  ['without a type', { ...BEYOND_THE_END, type: undefined }],
  ['behind a sound one', sequence(precompiled(charsmap()), BEYOND_THE_END)],
])('refuses a table that leads out of its memory: %s', async (_what, normalizer) => {
  await expect(load(normalizer)).rejects.toMatchObject({
    code: 'invalid_model',
    message:
      'tokenizer.json: precompiled_charsmap: expected a sound table of characters, ' +
      'got a replacement at 77 of 2 bytes',
  });
});

test('uses a sound table', async () => {
  const service = await load(sequence(precompiled(charsmap())));
  expect([...(await service.encode('a\u0001', { addSpecialTokens: false }))]).toEqual([97, 120]);
});
