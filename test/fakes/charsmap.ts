/** A table that replaces the byte 1 with `x`: its root is unit 0 with offset 256, the node of byte 1 is unit 257. */
export function charsmap(value = 0): Uint8Array {
  const units = new Uint32Array(512);
  units[0] = 256 << 10;
  units[257] = 1 | 0x100 | (2 << 10);
  units[257 ^ 2] = (0x80000000 | value) >>> 0;
  const replacements = Buffer.from('x\0');
  const size = Uint32Array.of(units.byteLength);
  return Buffer.concat(
    [size, units, replacements].map((part) => Buffer.from(part.buffer, part.byteOffset, part.byteLength)),
  );
}
