/** MTP heads in GGUF files of llama.cpp's converter give the tokens and the drafts of the model directories. */
import path from 'node:path';
import { Engine, type EngineOptions } from '../../ts/index';

const FIXTURES = path.join(__dirname, 'fixtures');
const SPECULATIVE = { method: 'mtp', numSpeculativeTokens: 3 } as const;
/** Few ids, so that drafts of a random head sometimes hold. */
const FEW_IDS = [40, 41, 42, 43];
const PROMPT = [1, ...Array.from({ length: 60 }, (_, i) => 40 + ((i * i * 7) % 41))];

async function run(
  model: string,
  options: EngineOptions = {},
): Promise<{ tokenIds: number[]; logprobs: number[]; numDrafts: number; numAccepted: number }> {
  const engine = await Engine.load(model, { threads: 2, ...options });
  try {
    const sampling = { maxTokens: 40, temperature: 0, ignoreEos: true, logprobs: 0, allowedTokenIds: FEW_IDS };
    const { tokenIds, logprobs } = (await engine.generate(PROMPT, sampling).result()).choices[0];
    const { numDraftTokens, numAcceptedTokens } = engine.stats();
    return {
      tokenIds: [...tokenIds],
      logprobs: logprobs!.map(({ logprob }) => logprob),
      numDrafts: numDraftTokens,
      numAccepted: numAcceptedTokens.reduce((sum, count) => sum + count, 0),
    };
  } finally {
    await engine.close();
  }
}

describe.each(['hybrid', 'experts'])('%s', (name) => {
  const file = path.join(FIXTURES, 'gguf', 'mtp', `${name}.gguf`);

  test('the head of the file drafts as that of the model directory', async () => {
    const directory = await run(path.join(FIXTURES, 'mtp', name), { speculative: SPECULATIVE });
    const ours = await run(file, { speculative: SPECULATIVE });
    expect(ours.tokenIds).toEqual(directory.tokenIds);
    expect(ours.numDrafts).toBeGreaterThan(0);
    expect([ours.numDrafts, ours.numAccepted]).toEqual([directory.numDrafts, directory.numAccepted]);
  });

  test('drafts and two ranks change no bit', async () => {
    const plain = await run(file);
    expect(plain.numDrafts).toBe(0);
    const { tokenIds, logprobs } = plain;
    expect(await run(file, { speculative: SPECULATIVE })).toMatchObject({ tokenIds, logprobs });
    expect(await run(file, { tensorParallelSize: 2 })).toMatchObject({ tokenIds, logprobs });
  });
});

test('a file without a head is refused', async () => {
  const file = path.join(FIXTURES, 'gguf', 'qwen35-f32.gguf');
  await expect(Engine.load(file, { speculative: SPECULATIVE })).rejects.toMatchObject({ code: 'invalid_argument' });
});

test('ranks that split the heads of a group are refused with the numbers', async () => {
  const file = path.join(FIXTURES, 'gguf', 'qwen35-f32.gguf');
  await expect(Engine.load(file, { tensorParallelSize: 2 })).rejects.toThrow(
    'recurrent layers have 3 heads in each group',
  );
});
