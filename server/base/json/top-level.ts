/** Where a value is in a text: from `start` up to `end`, with the blanks around it. */
export interface ValueRange {
  start: number;
  end: number;
}

/** A field of an object. */
export interface FieldRange extends ValueRange {
  /** Where its name is. */
  nameStart: number;
}

const [QUOTE, BACKSLASH, COLON, COMMA, OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = Buffer.from('"\\:,[]{}');

/**
 * Returns where the values of a valid JSON object are, by the names of their fields. Of several fields with one name
 * the last counts, as for JSON.parse. Nothing is parsed but names with escapes: parsing a value and writing it again
 * would lose digits of long numbers.
 */
export function topLevelValues(bytes: Buffer): Map<string, FieldRange> {
  const found = new Map<string, FieldRange>();
  let depth = 0;
  let key: string | undefined;
  let string: ValueRange = { start: 0, end: 0 };
  let start = 0;
  let nameStart = 0;
  const endValue = (end: number): void => {
    if (key !== undefined) found.set(key, { nameStart, start, end });
    key = undefined;
  };
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i];
    if (byte === QUOTE) {
      string = { start: i, end: stringEnd(bytes, i) };
      i = string.end - 1;
    } else if (byte === OPEN_LIST || byte === OPEN_OBJECT) {
      depth++;
    } else if (byte === CLOSE_LIST || byte === CLOSE_OBJECT) {
      if (--depth === 0) endValue(i);
    } else if (depth === 1 && byte === COLON) {
      key = nameAt(bytes, string);
      nameStart = string.start;
      start = i + 1;
    } else if (depth === 1 && byte === COMMA) {
      endValue(i);
    }
  }
  return found;
}

/**
 * Returns how many fields the objects of a valid JSON text have, inner ones and repeated names as well, how many lists
 * and objects there are, and how deep they are nested.
 */
export function shapeOf(bytes: Buffer): { numFields: number; numContainers: number; depth: number } {
  let numFields = 0;
  let numContainers = 0;
  let current = 0;
  let depth = 0;
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i];
    if (byte === QUOTE) i = stringEnd(bytes, i) - 1;
    else if (byte === COLON) numFields++;
    else if (byte === OPEN_LIST || byte === OPEN_OBJECT) {
      numContainers++;
      depth = Math.max(depth, ++current);
    } else if (byte === CLOSE_LIST || byte === CLOSE_OBJECT) current--;
  }
  return { numFields, numContainers, depth };
}

/** Returns the place after the closing quote of the string that begins at `start`, or the end of the text. */
function stringEnd(bytes: Buffer, start: number): number {
  for (let end = bytes.indexOf(QUOTE, start + 1); end >= 0; end = bytes.indexOf(QUOTE, end + 1)) {
    let numBackslashes = 0;
    while (bytes[end - 1 - numBackslashes] === BACKSLASH) numBackslashes++;
    if (numBackslashes % 2 === 0) return end + 1;
  }
  return bytes.length;
}

function nameAt(bytes: Buffer, { start, end }: ValueRange): string {
  const text = bytes.toString('utf8', start, end);
  return text.includes('\\') ? (JSON.parse(text) as string) : text.slice(1, -1);
}

/** Returns an object with other values at top-level fields, as JSON texts. New fields come first. */
export function withTopLevelValues(
  bytes: Buffer,
  found: ReadonlyMap<string, ValueRange>,
  values: Readonly<Record<string, string>>,
): Buffer {
  const all = Object.entries(values);
  const changes = all.flatMap(([name, text]) => {
    const range = found.get(name);
    return range === undefined ? [] : [{ ...range, text }];
  });
  const added = all.flatMap(([name, text]) => (found.has(name) ? [] : [`${JSON.stringify(name)}:${text}`]));
  const first = bytes.indexOf(OPEN_OBJECT) + 1;
  if (added.length > 0)
    changes.push({ start: first, end: first, text: added.join(',') + (found.size === 0 ? '' : ',') });
  const pieces: Buffer[] = [];
  let at = 0;
  for (const { start, end, text } of changes.sort((a, b) => a.start - b.start)) {
    pieces.push(bytes.subarray(at, start), Buffer.from(text));
    at = end;
  }
  return Buffer.concat([...pieces, bytes.subarray(at)]);
}

/** Returns an object without a top-level field. */
export function withoutTopLevelField(bytes: Buffer, { nameStart, end }: FieldRange): Buffer {
  if (bytes[end] === COMMA) return Buffer.concat([bytes.subarray(0, nameStart), bytes.subarray(end + 1)]);
  // The last field takes the comma before it along. The first field has none.
  const comma = bytes.lastIndexOf(COMMA, nameStart);
  return Buffer.concat([bytes.subarray(0, comma < 0 ? nameStart : comma), bytes.subarray(end)]);
}
