/** The version by which an addon and a capstan_cuda.so of different days tell each other apart. */
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

/** Of all that crosses, codes of errors included, but for comments and blanks. */
function contractHash(): string {
  const code = [...headersOf(API), 'native/base/error.h'].sort().map((header) =>
    read(header)
      .replace(/\/\/.*|kCudaApiVersion = \d+/g, '')
      .replace(/\s+/g, ' '),
  );
  return createHash('sha256').update(code.join('\n')).digest('hex').slice(0, 12);
}

// Where this fails, the contract has changed: raise kCudaApiVersion, and write down here what is received.
test('the version of the contract with capstan_cuda.so is raised when its headers change', () => {
  const [, version] = /kCudaApiVersion = (\d+)/.exec(read(API))!;
  expect([Number(version), contractHash()]).toEqual([5, '9bea4f25c129']);
});
