/**
 * The alphabet of byte-level BPE, from GPT-2: the character of each byte. Printable Latin-1 stands for itself. The
 * other 68 bytes are U+0100 and up, in order.
 */
export const CHARACTER_OF_BYTE: readonly string[] = makeAlphabet();

function makeAlphabet(): string[] {
  let numShifted = 0;
  return Array.from({ length: 256 }, (_, byte) => {
    const isPrintable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return String.fromCodePoint(isPrintable ? byte : 256 + numShifted++);
  });
}
