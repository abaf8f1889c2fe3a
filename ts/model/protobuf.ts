import { invalidFile } from './weight-file';

/** A field of a message: a number (varint or float), or the bytes of a string or an inner message. */
export interface ProtoField {
  id: number;
  value: number | Uint8Array;
}

const WIRE = { varint: 0, fixed64: 1, bytes: 2, fixed32: 5 } as const;

/**
 * Reads the fields of a message of Protocol Buffers in order. Fixed values of 32 bits are floats. Values of 64 bits
 * lose what a double cannot hold.
 * @throws CapstanError `invalid_model` that names `where`.
 */
export function* readProto(bytes: Uint8Array, where: string): Generator<ProtoField> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let at = 0;
  const take = (length: number): number => {
    const begin = at;
    if (length > bytes.length - at)
      throw invalidFile(
        where,
        `${length} bytes at ${at} of ${bytes.length}`,
        'the end: the file is damaged or truncated',
      );
    at += length;
    return begin;
  };
  const varint = (): number => {
    let value = 0;
    for (let factor = 1, i = 0; i < 10; i++, factor *= 128) {
      const byte = bytes[take(1)];
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
    throw invalidFile(where, `an integer of at most 10 bytes at ${at}`, 'a longer one');
  };
  while (at < bytes.length) {
    const key = varint();
    const id = Math.floor(key / 8);
    switch (key % 8) {
      case WIRE.varint:
        yield { id, value: varint() };
        break;
      case WIRE.fixed64:
        take(8);
        break;
      case WIRE.bytes: {
        const length = varint();
        const begin = take(length);
        yield { id, value: bytes.subarray(begin, begin + length) };
        break;
      }
      case WIRE.fixed32:
        yield { id, value: view.getFloat32(take(4), true) };
        break;
      default:
        throw invalidFile(where, `a field of a known type at ${at}`, `type ${key % 8}`);
    }
  }
}
