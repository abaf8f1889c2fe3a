/** T5's has 0.25 MB. */
const MAX_BYTES = 1 << 20;
const UNIT_BYTES = 4;

/**
 * Says what is wrong with a table that replaces characters, as SentencePiece compiles it; undefined if it is sound. The
 * tokenizer library follows the table without checks, and one that leads out of its memory would end the process.
 *
 * The table is the size of a double-array trie, the trie in units of 32 bits, and the replacements, each ended by 0.
 */
export function findCharsmapFault(bytes: Uint8Array): string | undefined {
  if (bytes.length > MAX_BYTES) return `more than ${MAX_BYTES} bytes`;
  if (bytes.length < UNIT_BYTES) return 'no size';
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const trieBytes = view.getUint32(0, true);
  if (trieBytes === 0 || trieBytes % UNIT_BYTES !== 0 || trieBytes > bytes.length - UNIT_BYTES)
    return `a trie of ${trieBytes} bytes in ${bytes.length}`;
  const replacements = bytes.subarray(UNIT_BYTES + trieBytes);
  if (!isUtf8(replacements)) return 'replacements that are not UTF-8';
  const units = Uint32Array.from({ length: trieBytes / UNIT_BYTES }, (_, i) =>
    view.getUint32(UNIT_BYTES * (i + 1), true),
  );
  return walkTrie(units, replacements);
}

function isUtf8(bytes: Uint8Array): boolean {
  try {
    new TextDecoder('utf-8', { fatal: true }).decode(bytes);
    return true;
  } catch {
    return false;
  }
}

/** Visits all nodes that some text can reach. From each, the next byte of a text leads to any of 255 units. */
function walkTrie(units: Uint32Array, replacements: Uint8Array): string | undefined {
  const isSeen = new Uint8Array(units.length);
  const open = [offsetOf(units[0])];
  while (open.length > 0) {
    const node = open.pop()!;
    if ((node | 0xff) >= units.length) return `a node ${node} in a trie of ${units.length} units`;
    if (isSeen[node] === 1) continue;
    isSeen[node] = 1;
    for (let byte = 1; byte < 256; byte++) {
      const unit = units[node ^ byte];
      if (labelOf(unit) !== byte) continue;
      const next = (node ^ byte ^ offsetOf(unit)) >>> 0;
      if (next >= units.length) return `a node ${next} in a trie of ${units.length} units`;
      if (hasLeaf(unit) && !isStart(replacements, valueOf(units[next])))
        return `a replacement at ${valueOf(units[next])} of ${replacements.length} bytes`;
      open.push(next);
    }
  }
  return undefined;
}

/** Whether a replacement may start here: not beyond the end, and not inside a character. */
function isStart(replacements: Uint8Array, at: number): boolean {
  return at === replacements.length || (at < replacements.length && (replacements[at] & 0xc0) !== 0x80);
}

function labelOf(unit: number): number {
  return (unit & 0x800000ff) >>> 0;
}

function hasLeaf(unit: number): boolean {
  return (unit & 0x100) !== 0;
}

function valueOf(unit: number): number {
  return unit & 0x7fffffff;
}

/** Bit 9 says that the offset counts blocks of 256 units. */
function offsetOf(unit: number): number {
  return ((unit >>> 10) << ((unit & 0x200) >>> 6)) >>> 0;
}
