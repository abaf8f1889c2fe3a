// The kernels are compiled over the Vec of each instruction set. Most builds compile only some of these headers.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

const FOLDER = join(__dirname, '../native/backend/cpu');
const HEADERS = readdirSync(FOLDER).filter((name) => /^vec_.*\.h$/.test(name));
/** Only some instruction sets have these, behind a macro that the kernels test. */
const OPTIONAL = ['vec_dot_bf16'];

function functionsOf(header: string): string[] {
  const text = readFileSync(join(FOLDER, header), 'utf8');
  const names = [...text.matchAll(/^inline .*?\b((?:vec|ivec|int|long)_\w+)\(/gm)].map(([, name]) => name!);
  return [...new Set(names)].filter((name) => !OPTIONAL.includes(name)).sort();
}

test('the Vec headers of x64, arm64 and all other processors are compared', () => {
  expect(HEADERS).toEqual(expect.arrayContaining(['vec_avx2.h', 'vec_avx512.h', 'vec_neon.h', 'vec_portable.h']));
});

test.each(HEADERS)('%s has the functions of vec_portable.h', (header) => {
  const expected = functionsOf('vec_portable.h');
  expect(expected.length).toBeGreaterThan(50);
  // Helpers of one header, such as ivec_of, are not part of the interface.
  expect(functionsOf(header)).toEqual(expect.arrayContaining(expected));
});
