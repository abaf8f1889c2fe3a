import { readGgufHeader } from '../../../../ts/model/gguf/header';
import { ggufBytes, type GgufParts, ggufString, u32, u64, writeGguf } from '../../../fakes/tiny-gguf';

const NAME = 'model.gguf';
const ONE_TENSOR: GgufParts['tensors'] = [['a', { sizes: [4] }]];

function read(bytes: Uint8Array, isWanted?: (key: string) => boolean): ReturnType<typeof readGgufHeader> {
  return readGgufHeader(writeGguf(bytes, NAME), NAME, isWanted);
}

async function errorOf(bytes: Uint8Array): Promise<{ code: string; message: string }> {
  return read(bytes).then(
    () => ({ code: 'none', message: 'no error' }),
    (error: { code: string; message: string }) => ({ code: error.code, message: error.message }),
  );
}

test('reads values of every type, and a table of tensors with offsets from the start of the file', async () => {
  const bytes = ggufBytes({
    metadata: [
      ['a', { uint32: 7 }],
      ['b', { int32: -7 }],
      ['c', { float32: 0.5 }],
      ['d', { bool: true }],
      ['e', { string: 'déjà' }],
      ['f', { strings: ['x', '', 'yz'] }],
      ['g', { int32s: [1, -2] }],
      ['h', { float32s: [0.25] }],
      ['i', { bools: [true, false] }],
      ['j', { uint64: 5n }],
      ['k', { uint64: 2n ** 63n }],
      ['__proto__', { uint16: 9 }],
    ],
    tensors: [
      ['one', { sizes: [4, 3] }],
      ['two', { sizes: [32], type: 8 }],
    ],
  });
  const { metadata, tensors } = await read(bytes);
  expect({ ...metadata }).toEqual({
    a: 7,
    b: -7,
    c: 0.5,
    d: true,
    e: 'déjà',
    f: ['x', '', 'yz'],
    g: Int32Array.of(1, -2),
    h: Float32Array.of(0.25),
    i: [true, false],
    j: 5,
    k: 2n ** 63n,
    ['__proto__']: 9,
  });
  const dataStart = bytes.length - 64 - 34;
  expect([...tensors]).toEqual([
    ['one', { dtype: 'F32', shape: [3, 4], offset: dataStart, numBytes: 48 }],
    ['two', { dtype: 'Q8_0', shape: [32], offset: dataStart + 64, numBytes: 34 }],
  ]);
});

test('skips arrays that are not wanted, also those larger than its buffer', async () => {
  const long = 'x'.repeat(3_000_000);
  const bytes = ggufBytes({
    metadata: [
      ['a', { strings: [long, 'b'] }],
      ['b', { uint8s: new Uint8Array(3_000_000) }],
      ['c', { string: long }],
      ['d', { uint32: 4 }],
    ],
    tensors: ONE_TENSOR,
  });
  const { metadata, tensors } = await read(bytes, () => false);
  expect({ ...metadata }).toEqual({ a: undefined, b: undefined, c: long, d: 4 });
  expect(tensors.size).toBe(1);
  expect({ ...(await read(bytes)).metadata }).toMatchObject({ a: [long, 'b'], d: 4 });
});

test('reads version 2, and other alignments', async () => {
  await expect(read(ggufBytes({ version: 2, tensors: ONE_TENSOR }))).resolves.toMatchObject({ name: NAME });
  const metadata = [['general.alignment', { uint32: 8 }]] as const;
  const tensors = [...ONE_TENSOR!, ['b', { sizes: [2] }]] as const;
  const bytes = ggufBytes({ metadata, tensors, alignment: 8 });
  expect((await read(bytes)).tensors.get('b')!.offset).toBe(bytes.length - 8);
});

const value = (raw: Uint8Array): GgufParts => ({ metadata: [['k', { raw }]], tensors: ONE_TENSOR });

describe('refuses a damaged or hostile file:', () => {
  const cases: [what: string, bytes: Uint8Array, message: string][] = [
    ['an empty file', Buffer.alloc(0), 'header'],
    ['another format', Buffer.alloc(64, 'PK'), 'a GGUF file, which starts with GGUF'],
    ['a big-endian file', ggufBytes({ version: 0x03000000 }), 'a little-endian GGUF file'],
    ['version 1', ggufBytes({ version: 1 }), 'GGUF version 2 or 3, got version 1'],
    ['too many tensors', ggufBytes({ numTensors: 2n ** 63n }), 'at most 65536 tensors'],
    ['too many values', ggufBytes({ numValues: 2n ** 40n }), 'at most 65536 metadata values'],
    ['more tensors than it holds', ggufBytes({ numTensors: 3n, tensors: ONE_TENSOR }), '1 to 4 dimensions, got 0'],
    ['a long key', Buffer.concat([ggufBytes({ numValues: 1n }).subarray(0, 24), u64(70_000)]), 'at most 65535 bytes'],
    ['a string beyond the end', ggufBytes(value(Buffer.concat([u32(8), u64(2n ** 40n)]))), 'damaged or truncated'],
    ['an unknown value type', ggufBytes(value(u32(99))), 'a value type from 0 to 12'],
    [
      'an array beyond the end',
      ggufBytes(value(Buffer.concat([u32(9), u32(6), u64(2n ** 62n)]))),
      'damaged or truncated',
    ],
    ['an array of arrays', ggufBytes(value(Buffer.concat([u32(9), u32(9), u64(1)]))), 'an array of arrays'],
    [
      'a string array beyond the end',
      ggufBytes(value(Buffer.concat([u32(9), u32(8), u64(2n ** 61n)]))),
      'damaged or truncated',
    ],
    [
      'a key twice',
      ggufBytes({
        metadata: [
          ['k', { uint32: 1 }],
          ['k', { uint32: 2 }],
        ],
      }),
      'each metadata key once',
    ],
    ['an odd alignment', ggufBytes({ metadata: [['general.alignment', { uint32: 24 }]] }), 'a power of two'],
    ['an alignment of 0', ggufBytes({ metadata: [['general.alignment', { uint32: 0 }]] }), 'a power of two'],
    ['a text as alignment', ggufBytes({ metadata: [['general.alignment', { string: '32' }]] }), 'a power of two'],
    ['a tensor twice', ggufBytes({ tensors: [...ONE_TENSOR!, ...ONE_TENSOR!] }), 'each tensor once'],
    ['no dimensions', ggufBytes({ tensors: [['a', { sizes: [] }]] }), '1 to 4 dimensions'],
    ['five dimensions', ggufBytes({ tensors: [['a', { sizes: [1, 1, 1, 1, 1] }]] }), '1 to 4 dimensions'],
    ['a size of 0', ggufBytes({ tensors: [['a', { sizes: [4, 0] }]] }), 'sizes of 1 or more'],
    [
      'sizes that overflow',
      ggufBytes({ tensors: [['a', { sizes: [2 ** 31, 2 ** 31], bytes: new Uint8Array(4) }]] }),
      'with a product below 2^53',
    ],
    ['an unknown type', ggufBytes({ tensors: [['a', { sizes: [4], type: 77 }]] }), 'a tensor type that is known'],
    ['rows of broken blocks', ggufBytes({ tensors: [['a', { sizes: [33], type: 8 }]] }), 'rows of a multiple of 32'],
    ['an unaligned offset', ggufBytes({ tensors: [['a', { sizes: [4], offset: 4 }]] }), 'a multiple of 32'],
    [
      'tensors that overlap',
      ggufBytes({
        tensors: [
          ['a', { sizes: [16] }],
          ['b', { sizes: [16], offset: 32 }],
        ],
      }),
      'the end of another tensor',
    ],
    [
      'an offset beyond the end',
      // Its offset is the last field of the header.
      ggufBytes({ tensors: ONE_TENSOR }).fill(0xff, 49, 57),
      'data within the file',
    ],
    ['a truncated file', ggufBytes({ tensors: ONE_TENSOR }).subarray(0, -1), 'download it again'],
  ];
  test.each(cases)('%s', async (_what, bytes, message) => {
    const error = await errorOf(bytes);
    expect(error.message).toContain(message);
    expect(error.message).toContain(NAME);
    expect(error.code).toBe('invalid_model');
  });

  const HOSTILE = `\u001b[2J\u009b\n\u202e${'k'.repeat(60_000)}`;

  test.each<[what: string, parts: GgufParts]>([
    [
      'a key twice',
      {
        metadata: [
          [HOSTILE, { uint32: 1 }],
          [HOSTILE, { uint32: 1 }],
        ],
      },
    ],
    ['a key with an unknown type', { metadata: [[HOSTILE, { raw: u32(99) }]] }],
    ['a key with an array of arrays', { metadata: [[HOSTILE, { raw: Buffer.concat([u32(9), u32(9)]) }]] }],
    ['a key at the end of the file', { metadata: [[HOSTILE, { raw: Buffer.concat([u32(8), u64(99)]) }]] }],
    ['a tensor without dimensions', { tensors: [[HOSTILE.slice(0, 1000), { sizes: [] }]] }],
  ])('shows the start of a name on one line, without control characters: %s', async (_what, parts) => {
    const { code, message } = await errorOf(ggufBytes(parts));
    expect(code).toBe('invalid_model');
    expect(message).toContain(`${NAME}: \\u001b[2J\\u009b\\u000a\\u202ekkk`);
    expect(message).toContain('kk…: expected ');
    expect(message.length).toBeLessThan(700);
  });

  test('a header larger than the limit', async () => {
    // A sparse file: the length says 80 MB, and the file has them.
    const head = Buffer.concat([
      ggufBytes({ numValues: 1n }).subarray(0, 24),
      ggufString('k'),
      u32(8),
      u64(80_000_000),
    ]);
    const bytes = Buffer.alloc(80_000_100);
    head.copy(bytes);
    expect((await errorOf(bytes)).message).toContain('a header of at most 67108864 bytes');
  });
});

test('a type that ggml has removed is refused by its name', async () => {
  expect(await errorOf(ggufBytes({ tensors: [['a', { sizes: [32], type: 31 }]] }))).toEqual({
    code: 'unsupported_model',
    message: expect.stringContaining(
      'model.gguf: a: expected a tensor type that is known, got Q4_0_4_4, which ggml has removed: choose another',
    ) as string,
  });
});

test('a file of a model directory is refused with a hint', async () => {
  const path = writeGguf(Buffer.alloc(64, 'PK'), NAME);
  await expect(readGgufHeader(path, 'model.safetensors')).rejects.toThrow(/Name the folder of a model directory/);
  await expect(readGgufHeader(path, NAME)).rejects.not.toThrow(/Name the folder/);
});

test('names a file that is missing, and a folder', async () => {
  await expect(readGgufHeader('/no/such.gguf', 'such.gguf')).rejects.toMatchObject({ code: 'invalid_model' });
  await expect(readGgufHeader('/tmp', 'tmp')).rejects.toMatchObject({ message: expect.stringContaining('tmp: ') });
});
