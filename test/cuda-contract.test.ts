/** Keeps kCudaApiVersion in step with the headers, so that an addon rejects a capstan_cuda.so of another version. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

const API = 'native/backend/cuda_api.h';
const read = (header: string): string => readFileSync(join(__dirname, '..', header), 'utf8');

function headersOf(header: string, found = new Set<string>()): Set<string> {
  if (found.has(header)) return found;
  found.add(header);
  for (const [, name] of read(header).matchAll(/^#include "([^"]+)"/gm))
    headersOf(name.startsWith('native/') ? name : join(dirname(header), name), found);
  return found;
}

/** Returns a hash of all declarations of the interface, including error codes, without comments and white space. */
function contractHash(): string {
  const code = [...headersOf(API), 'native/base/error.h'].sort().map((header) =>
    read(header)
      .replace(/\/\/.*|kCudaApiVersion = \d+/g, '')
      .replace(/\s+/g, ' '),
  );
  return createHash('sha256').update(code.join('\n')).digest('hex').slice(0, 12);
}

// If this fails, the interface has changed: increment kCudaApiVersion and update the expected values.
test('kCudaApiVersion changes whenever the headers of the interface change', () => {
  const [, version] = /kCudaApiVersion = (\d+)/.exec(read(API))!;
  expect([Number(version), contractHash()]).toEqual([20, '159505a19cc4']);
});
