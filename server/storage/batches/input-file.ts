import { type FileHandle, open } from 'node:fs/promises';
import { isLight, LIGHT } from '../../base/json/light';
import { topLevelValues, type ValueRange } from '../../base/json/top-level';
import { readLines } from './lines';
import { MAX_CUSTOM_ID_LENGTH, MAX_ERRORS, MAX_LINE_BYTES, MAX_LINES, MAX_MODELS } from './limits';
import type { BatchError } from './records';
import { show } from '../../base/json/validate';

/** One request of a batch. */
export interface InputLine {
  customId: string;
  /** JSON. */
  body: Buffer;
  /** Whether the body asks for a stream. */
  isStream: boolean;
}

/** What the check of a line found. */
interface CheckedLine {
  customId: string;
  model: string | undefined;
}

/** Windows editors and PowerShell write it at the start of UTF-8 files. */
const BYTE_ORDER_MARK = Buffer.from('\uFEFF');
/** Blank lines included. Each takes time. */
const MAX_FILE_LINES = 2 * MAX_LINES;
/** A longer name names no model. */
const MAX_MODEL_LENGTH = 512;

/** The input of a batch is not one that can run. */
export class InvalidInput extends Error {
  readonly errors: readonly BatchError[];

  constructor(errors: readonly BatchError[]) {
    super('The input file is not valid');
    this.errors = errors;
  }
}

/** The requests of an input file. Only their places are in memory. */
export class InputFile {
  readonly #file: FileHandle;
  readonly #offsets: readonly number[];
  readonly #lengths: readonly number[];

  private constructor(file: FileHandle, offsets: readonly number[], lengths: readonly number[]) {
    this.#file = file;
    this.#offsets = offsets;
    this.#lengths = lengths;
  }

  /**
   * Checks all requests.
   * @param onLine Receives the `custom_id` and the model of each request, in order.
   * @throws InvalidInput.
   */
  static async open(
    path: string,
    endpoint: string,
    onLine: (customId: string, model: string | undefined) => void,
  ): Promise<InputFile> {
    const offsets: number[] = [];
    const lengths: number[] = [];
    const errors: BatchError[] = [];
    const seen = new Set<string>();
    const models = new Set<string | undefined>();
    let line = 0;
    for await (const { offset: start, bytes: whole, isTooLong } of readLines(path, MAX_LINE_BYTES)) {
      line++;
      const hasMark = start === 0 && whole.subarray(0, BYTE_ORDER_MARK.length).equals(BYTE_ORDER_MARK);
      const skipped = hasMark ? BYTE_ORDER_MARK.length : 0;
      const [offset, bytes] = [start + skipped, whole.subarray(skipped)];
      if (!isTooLong && isBlank(bytes) && line <= MAX_FILE_LINES) continue;
      if (offsets.length >= MAX_LINES || line > MAX_FILE_LINES) {
        const limit = offsets.length >= MAX_LINES ? `${MAX_LINES} requests` : `${MAX_FILE_LINES} lines`;
        errors.push({ ...fault('too_many_lines', `expected at most ${limit}, got more`), line: null });
        break;
      }
      const checked = isTooLong ? TOO_LONG : checkLine(bytes, endpoint);
      if ('code' in checked) errors.push({ ...checked, line });
      else if (seen.has(checked.customId))
        errors.push({
          ...fault(
            'duplicate_custom_id',
            `expected a custom_id that no other line has, got ${show(checked.customId)}`,
            'custom_id',
          ),
          line,
        });
      else {
        seen.add(checked.customId);
        models.add(checked.model);
        onLine(checked.customId, checked.model);
      }
      if (models.size > MAX_MODELS) {
        errors.push({
          ...fault('too_many_models', `expected at most ${MAX_MODELS} models in all lines, got more`, 'model'),
          line,
        });
        break;
      }
      if (errors.length >= MAX_ERRORS) break;
      offsets.push(offset);
      lengths.push(bytes.length);
    }
    if (line === 0 || (offsets.length === 0 && errors.length === 0))
      errors.push({
        ...fault('empty_file', 'expected a line of JSON for each request, got an empty file'),
        line: null,
      });
    if (errors.length > 0) throw new InvalidInput(errors);
    return new InputFile(await open(path, 'r'), offsets, lengths);
  }

  get numLines(): number {
    return this.#offsets.length;
  }

  /** Returns the bytes of a line. */
  lengthOf(index: number): number {
    return this.#lengths[index];
  }

  async read(index: number): Promise<InputLine> {
    const bytes = Buffer.alloc(this.#lengths[index]);
    for (let done = 0; done < bytes.length;) {
      const { bytesRead } = await this.#file.read(bytes, done, bytes.length - done, this.#offsets[index] + done);
      if (bytesRead === 0) throw new Error('the input file of a batch became shorter');
      done += bytesRead;
    }
    // Parsing the body and writing it again would lose digits of a seed.
    const found = topLevelValues(bytes);
    const textAt = ({ start, end }: ValueRange, of: Buffer) => of.toString('utf8', start, end).trim();
    const { start, end } = found.get('body')!;
    const body = bytes.subarray(start, end);
    const stream = topLevelValues(body).get('stream');
    return {
      customId: JSON.parse(textAt(found.get('custom_id')!, bytes)) as string,
      body,
      isStream: stream !== undefined && textAt(stream, body) === 'true',
    };
  }

  close(): Promise<void> {
    return this.#file.close();
  }
}

function fault(code: string, message: string, param: string | null = null): Omit<BatchError, 'line'> {
  return { code, message: param === null ? message : `${param}: ${message}`, param };
}

const TOO_LONG = fault('line_too_long', `expected a line of at most ${MAX_LINE_BYTES} bytes, got a longer one`);

/** Returns what a line says, or what is wrong with it. */
function checkLine(bytes: Buffer, endpoint: string): CheckedLine | Omit<BatchError, 'line'> {
  if (!isLight(bytes)) return fault('invalid_json_line', `expected ${LIGHT}, got more`);
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString());
  } catch {
    return fault('invalid_json_line', 'expected a JSON object, got a line that is not valid JSON');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return fault('invalid_json_line', `expected a JSON object, got ${show(value)}`);
  const { custom_id: customId, method, url, body } = value as Record<string, unknown>;
  if (typeof customId !== 'string' || customId === '' || customId.length > MAX_CUSTOM_ID_LENGTH)
    return fault(
      'invalid_custom_id',
      `expected a string of 1 to ${MAX_CUSTOM_ID_LENGTH} characters, got ${show(customId)}`,
      'custom_id',
    );
  if (method !== 'POST') return fault('invalid_method', `expected POST, got ${show(method)}`, 'method');
  if (url !== endpoint)
    return fault('mismatched_endpoint', `expected ${endpoint}, the endpoint of the batch, got ${show(url)}`, 'url');
  if (typeof body !== 'object' || body === null || Array.isArray(body))
    return fault('invalid_body', `expected an object, got ${show(body)}`, 'body');
  const { model } = body as { model?: unknown };
  return { customId, model: typeof model === 'string' && model.length <= MAX_MODEL_LENGTH ? model : undefined };
}

function isBlank(bytes: Buffer): boolean {
  return !/[^ \t\r]/.test(bytes.toString('latin1'));
}
