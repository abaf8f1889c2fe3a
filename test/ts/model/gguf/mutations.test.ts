import { writeFileSync } from 'node:fs';
import { readGgufModel } from '../../../../ts/model/gguf/model';
import { readGgufText } from '../../../../ts/model/gguf/text';
import { ggufBytes, tinyGgufMetadata, tinyGgufTensors, writeGguf } from '../../../fakes/tiny-gguf';

const NUM_MUTATIONS = Number(process.env.GGUF_MUTATIONS ?? 200);
const EXTREMES = [0, 1, 0x7fffffff, 0xffffffff];

/** The same seed gives the same numbers. */
function randomBelow(seed: number): (limit: number) => number {
  let state = seed;
  return (limit) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
}

/** Changes a byte, replaces a number by an extreme one, or cuts the end or a piece. */
function mutate(bytes: Buffer, headerBytes: number, random: (limit: number) => number): Buffer {
  const at = random(Math.min(headerBytes, bytes.length - 4));
  switch (random(4)) {
    case 0:
      bytes[at] = random(256);
      return bytes;
    case 1:
      bytes.writeUInt32LE(EXTREMES[random(EXTREMES.length)], at);
      return bytes;
    case 2:
      return random(4) === 0 ? bytes.subarray(0, Math.max(8, at)) : bytes;
    default:
      return Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + random(64))]);
  }
}

/** Returns `read`, or the code of the error. */
async function outcomeOf(reading: Promise<unknown>): Promise<string> {
  return reading.then(
    () => 'read',
    (error: { code?: string; stack?: string }) => error.code ?? String(error.stack),
  );
}

test('a mutated file is read, or refused with a code', async () => {
  const valid = ggufBytes({ metadata: tinyGgufMetadata(), tensors: tinyGgufTensors() });
  const random = randomBelow(18);
  const path = writeGguf(valid);
  const seen: Record<string, number> = {};
  for (let round = 0; round < NUM_MUTATIONS; round++) {
    let bytes: Buffer = Buffer.from(valid);
    for (let change = random(3); change >= 0; change--) bytes = mutate(bytes, valid.length - 3_000, random);
    writeFileSync(path, bytes);
    for (const outcome of [await outcomeOf(readGgufModel(path)), await outcomeOf(readGgufText(path))])
      seen[outcome] = (seen[outcome] ?? 0) + 1;
  }
  expect(Object.keys(seen).sort()).toEqual(['invalid_model', 'read', 'unsupported_model']);
  expect(seen.read).toBeGreaterThan(NUM_MUTATIONS / 10);
  expect(seen.invalid_model).toBeGreaterThan(NUM_MUTATIONS / 5);
});
