/** What the body of a request says about its model, before a model parses the body. */
import { ApiError } from '../../base/errors';
import { parseJsonText } from '../../base/json/json-text';

export interface WantedModel {
  /** Undefined if the body names none. */
  model: string | undefined;
  isStream: boolean;
}

const [QUOTE, BACKSLASH, COLON, OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = Buffer.from('"\\:[]{}');
const MODEL = Buffer.from('"model"');
const STREAM = Buffer.from('"stream"');
/** Bytes that are read before other work gets a turn. */
const TURN_BYTES = 2 ** 20;
/** Longer names match no model. */
const MAX_NAME_BYTES = 4096;

/**
 * Reads the top-level `model` and `stream` of a JSON object without parsing the rest. The text need not be valid JSON:
 * the model parses and checks it again. Throws ApiError `invalid_json` or `invalid_type`.
 */
export async function readWantedModel(body: Uint8Array): Promise<WantedModel> {
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
  const starts = await findValues(bytes);
  const model = starts.model === undefined ? undefined : nameAt(bytes, starts.model);
  if (model === undefined && bytes.length <= TURN_BYTES) parseJsonText(bytes);
  return {
    model: model === '' ? undefined : model,
    isStream:
      starts.stream !== undefined && /^\s*true/.test(bytes.toString('latin1', starts.stream, starts.stream + 64)),
  };
}

interface Starts {
  model: number | undefined;
  stream: number | undefined;
}

/** Returns where the values begin. Of several fields with one name the last counts, as for JSON.parse. */
async function findValues(bytes: Buffer): Promise<Starts> {
  const starts: Starts = { model: undefined, stream: undefined };
  let depth = 0;
  let key: Buffer | undefined;
  let turnEnd = TURN_BYTES;
  for (let i = 0; i < bytes.length; i++) {
    if (i > turnEnd) {
      turnEnd = i + TURN_BYTES;
      await new Promise(setImmediate);
    }
    const byte = bytes[i];
    if (byte === QUOTE) {
      const end = stringEnd(bytes, i);
      if (depth === 1) key = bytes.subarray(i, end);
      i = end - 1;
    } else if (byte === OPEN_LIST || byte === OPEN_OBJECT) {
      depth++;
    } else if (byte === CLOSE_LIST || byte === CLOSE_OBJECT) {
      depth--;
    } else if (byte === COLON && depth === 1) {
      if (key?.equals(MODEL)) starts.model = i + 1;
      else if (key?.equals(STREAM)) starts.stream = i + 1;
    }
  }
  return starts;
}

/** Returns the place after the closing quote of the string that begins at `start`. */
function stringEnd(bytes: Buffer, start: number): number {
  for (let end = bytes.indexOf(QUOTE, start + 1); end >= 0; end = bytes.indexOf(QUOTE, end + 1)) {
    let numBackslashes = 0;
    while (bytes[end - 1 - numBackslashes] === BACKSLASH) numBackslashes++;
    if (numBackslashes % 2 === 0) return end + 1;
  }
  return bytes.length;
}

/** Returns undefined for null. */
function nameAt(bytes: Buffer, start: number): string | undefined {
  const first = /\S/.exec(bytes.toString('latin1', start, start + MAX_NAME_BYTES));
  const from = start + (first?.index ?? 0);
  if (bytes[from] === QUOTE) {
    const text = bytes.toString('utf8', from, Math.min(stringEnd(bytes, from), from + MAX_NAME_BYTES));
    try {
      return JSON.parse(text) as string;
    } catch {
      parseJsonText(bytes);
      throw new ApiError('invalid_type', 'model: expected the name of a model', { param: 'model' });
    }
  }
  if (/^null/.test(bytes.toString('latin1', from, from + 5))) return undefined;
  parseJsonText(bytes);
  throw new ApiError('invalid_type', 'model: expected a string', { param: 'model' });
}
