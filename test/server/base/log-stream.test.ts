import { execFileSync } from 'node:child_process';
import { closeSync, constants, mkdtempSync, openSync, readSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { LogStream } from '../../../server/base/log-stream';

const MAX_WAITING_BYTES = 1 << 20;

/** Both ends of a pipe. Writing to `write` blocks while the pipe is full, as standard error does. */
function pipe(): { read: number; write: number } {
  const path = join(mkdtempSync(join(tmpdir(), 'capstan-log-')), 'pipe');
  execFileSync('mkfifo', [path]);
  const read = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  return { read, write: openSync(path, constants.O_WRONLY) };
}

/** Returns the bytes that are available now. */
function readAll(fd: number): string {
  const chunks: string[] = [];
  const buffer = Buffer.alloc(1 << 16);
  try {
    for (let numBytes = 1; numBytes > 0;) {
      numBytes = readSync(fd, buffer);
      chunks.push(buffer.toString('utf8', 0, numBytes));
    }
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') throw error;
  }
  return chunks.join('');
}

/** Reads until several retries find nothing. */
async function drain(fd: number): Promise<string> {
  let text = '';
  for (let silent = 0; silent < 5; silent++) {
    const more = readAll(fd);
    if (more !== '') silent = 0;
    text += more;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return text;
}

test('writes lines at once', () => {
  const { read, write } = pipe();
  new LogStream(write).write('one\n');
  expect(readAll(read)).toBe('one\n');
});

test('a stalled reader does not block, and later reads complete lines in order', async () => {
  const { read, write } = pipe();
  const stream = new LogStream(write);
  const lines = Array.from({ length: 30_000 }, (_, i) => `${i} ${'x'.repeat(90)}\n`);
  // More than the pipe and the memory limit hold. A blocking write would never return.
  lines.forEach(stream.write);
  const text = await drain(read);
  expect(text.length).toBeGreaterThan(MAX_WAITING_BYTES * 0.9);
  expect(text.length).toBeLessThan(MAX_WAITING_BYTES + (1 << 17));
  expect(lines.join('').startsWith(text)).toBe(true);
  stream.write('after\n');
  expect(await drain(read)).toBe('after\n');
});

test('drops lines for a pipe without a reader', () => {
  const { read, write } = pipe();
  const stream = new LogStream(write);
  closeSync(read);
  expect(() => stream.write('one\n')).not.toThrow();
});
