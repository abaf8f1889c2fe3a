import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { CapstanError, type CapstanErrorCode, escapeControls, showPlace } from '../errors';

/** One tensor of a file. Its range is checked against the size of the file. */
export interface StoredTensor {
  /** As written in the file: `F32`, `BF16`, … */
  dtype: string;
  /** Row-major: the last size is that of a row. */
  shape: number[];
  /** Offset in bytes from the start of the file. */
  offset: number;
  numBytes: number;
}

/** A file, or the part of a remote one that has arrived. */
export interface ByteSource {
  /** Reads at least one byte, except at the end. */
  read(into: Uint8Array, offset: number, length: number, position: number): Promise<{ bytesRead: number }>;
}

/** A file of a model that is open for reading. `name` is its name in error messages. */
export interface WeightFile {
  readonly handle: ByteSource;
  readonly name: string;
  readonly size: number;
}

/**
 * Opens a file, runs `use`, and closes the file.
 * @throws CapstanError `invalid_model` for a missing file or a folder, `io_error` for one that cannot be read.
 */
export async function withWeightFile<T>(path: string, name: string, use: (file: WeightFile) => Promise<T>): Promise<T> {
  const handle = await openForReading(path, name);
  try {
    const stats = await handle.stat();
    if (!stats.isFile()) throw invalidFile(name, 'a regular file', 'another kind of file');
    return await use({ handle, name, size: stats.size });
  } finally {
    await handle.close();
  }
}

async function openForReading(path: string, name: string): Promise<FileHandle> {
  try {
    // O_NONBLOCK: to open a pipe would else wait for its writer. Windows has no such flag.
    return await open(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0));
  } catch (cause) {
    const isMissing = (cause as NodeJS.ErrnoException).code === 'ENOENT';
    throw new CapstanError(
      isMissing ? 'invalid_model' : 'io_error',
      `${name}: expected a readable file, got ${(cause as Error).message}`,
      { param: name, cause },
    );
  }
}

/** Fills `into` with the bytes at `position`. @throws CapstanError `invalid_model` if the file ends before. */
export async function readFully({ handle, name }: WeightFile, into: Uint8Array, position: number): Promise<void> {
  let numRead = 0;
  while (numRead < into.length) {
    const { bytesRead } = await handle.read(into, numRead, into.length - numRead, position + numRead);
    if (bytesRead === 0)
      throw invalidFile(name, `${into.length} bytes at ${position}`, `the file's end after ${numRead}`);
    numRead += bytesRead;
  }
}

/** @param where The file, and the key or tensor in it. Names in a file may be long and hold control characters. */
export function invalidFile(where: string, expected: string, received: string): CapstanError {
  return fileError('invalid_model', where, expected, received);
}

export function unsupportedFile(where: string, expected: string, received: string): CapstanError {
  return fileError('unsupported_model', where, expected, received);
}

function fileError(code: CapstanErrorCode, where: string, expected: string, received: string): CapstanError {
  return CapstanError.unexpected(code, showPlace(where), expected, escapeControls(received));
}
