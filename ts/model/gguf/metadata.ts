import { invalidFile } from '../weight-file';
import type { ByteReader } from './byte-reader';

/** Integers beyond 2^53 are bigints. Arrays of numbers are typed arrays. */
export type MetadataValue = number | bigint | boolean | string | MetadataArray;
type MetadataArray = readonly string[] | readonly boolean[] | NumberArray;
type NumberArray =
  | Uint8Array
  | Int8Array
  | Uint16Array
  | Int16Array
  | Uint32Array
  | Int32Array
  | Float32Array
  | Float64Array
  | BigUint64Array
  | BigInt64Array;

/** Values by key. An array that was not wanted is undefined. */
export type Metadata = Readonly<Record<string, MetadataValue | undefined>>;

/** Numbers in F32. */
export interface StoredValues {
  /** Of the first, from the start of the file. */
  offset: number;
  count: number;
}

/** Limit of the format. */
const MAX_KEY_BYTES = 65_535;
const MAX_VALUES = 65_536;
const FLOAT = 6;
const STRING = 8;
const BOOL = 7;
const ARRAY = 9;

interface NumberType {
  bytes: number;
  toArray: (data: ArrayBuffer) => NumberArray;
}

/** The number types of the format, by their number. 7 is bool, 8 string and 9 array. */
const NUMBERS: Readonly<Record<number, NumberType>> = {
  0: { bytes: 1, toArray: (data) => new Uint8Array(data) },
  1: { bytes: 1, toArray: (data) => new Int8Array(data) },
  2: { bytes: 2, toArray: (data) => new Uint16Array(data) },
  3: { bytes: 2, toArray: (data) => new Int16Array(data) },
  4: { bytes: 4, toArray: (data) => new Uint32Array(data) },
  5: { bytes: 4, toArray: (data) => new Int32Array(data) },
  6: { bytes: 4, toArray: (data) => new Float32Array(data) },
  [BOOL]: { bytes: 1, toArray: (data) => new Uint8Array(data) },
  10: { bytes: 8, toArray: (data) => new BigUint64Array(data) },
  11: { bytes: 8, toArray: (data) => new BigInt64Array(data) },
  12: { bytes: 8, toArray: (data) => new Float64Array(data) },
};

/** Reads the keys and values of a GGUF file. `isWanted` says which arrays are kept; the others are skipped. */
export class MetadataReader {
  /** Numbers in F32, by their key. */
  readonly values = new Map<string, StoredValues>();
  readonly #reader: ByteReader;
  readonly #file: string;
  readonly #isWanted: (key: string) => boolean;

  constructor(reader: ByteReader, file: string, isWanted: (key: string) => boolean) {
    this.#reader = reader;
    this.#file = file;
    this.#isWanted = isWanted;
  }

  async read(count: bigint): Promise<Metadata> {
    if (count > MAX_VALUES)
      throw invalidFile(this.#file, `at most ${MAX_VALUES} metadata values`, `a count of ${count}`);
    // Without a prototype, so that a key such as `__proto__` is one like any other.
    const values = Object.create(null) as Record<string, MetadataValue | undefined>;
    for (let i = 0; i < count; i++) {
      const key = await this.readString(`metadata key ${i}`, MAX_KEY_BYTES);
      if (key in values) throw invalidFile(`${this.#file}: ${key}`, 'each metadata key once', 'the key twice');
      values[key] = await this.#readValue(key);
    }
    return values;
  }

  async readString(what: string, maxBytes = Infinity): Promise<string> {
    await this.#reader.need(8, what);
    const length = this.#reader.takeUint64();
    if (length > maxBytes)
      throw invalidFile(`${this.#file}: ${what}`, `at most ${maxBytes} bytes`, `a length of ${length}`);
    this.#reader.checkRemaining(length, what);
    const numBytes = Number(length);
    if (this.#reader.has(numBytes)) return this.#reader.takeText(numBytes);
    return (await this.#reader.bytes(numBytes, what)).toString('utf8');
  }

  async #readValue(key: string): Promise<MetadataValue | undefined> {
    const type = await this.#readType(key);
    if (type === STRING) return this.readString(key);
    if (type === ARRAY) return this.#readArray(key);
    if (type === FLOAT) this.values.set(key, { offset: this.#reader.position, count: 1 });
    const [value] = await this.#readNumbers(key, type, 1);
    return typeof value === 'bigint' ? toNumber(value) : value;
  }

  async #readType(key: string): Promise<number> {
    await this.#reader.need(4, key);
    const type = this.#reader.takeUint32();
    if (type !== STRING && type !== ARRAY && !Object.hasOwn(NUMBERS, type))
      throw invalidFile(`${this.#file}: ${key}`, 'a value type from 0 to 12', String(type));
    return type;
  }

  async #readArray(key: string): Promise<MetadataArray | undefined> {
    const type = await this.#readType(key);
    if (type === ARRAY)
      throw invalidFile(`${this.#file}: ${key}`, 'an array of strings or numbers', 'an array of arrays');
    await this.#reader.need(8, key);
    const count = this.#reader.takeUint64();
    const minBytes = type === STRING ? 8 : NUMBERS[type].bytes;
    this.#reader.checkRemaining(count * BigInt(minBytes), key);
    const length = Number(count);
    if (type === STRING) return this.#readStrings(key, length);
    if (type === FLOAT) this.values.set(key, { offset: this.#reader.position, count: length });
    if (this.#isWanted(key)) return this.#readNumbers(key, type, length);
    this.#reader.skip(length * minBytes, key);
    return undefined;
  }

  async #readStrings(key: string, length: number): Promise<string[] | undefined> {
    const strings = this.#isWanted(key) ? new Array<string>(length) : undefined;
    for (let i = 0; i < length; i++) {
      // Waits for the disk only when the buffer is empty: a vocabulary has hundreds of thousands of strings.
      if (!this.#reader.has(8)) await this.#reader.need(8, key);
      const numBytes = this.#reader.takeUint64();
      this.#reader.checkRemaining(numBytes, key);
      if (strings === undefined) this.#reader.skip(Number(numBytes), key);
      else if (this.#reader.has(Number(numBytes))) strings[i] = this.#reader.takeText(Number(numBytes));
      else strings[i] = (await this.#reader.bytes(Number(numBytes), key)).toString('utf8');
    }
    return strings;
  }

  async #readNumbers(key: string, type: number, length: number): Promise<NumberArray | boolean[]> {
    const { bytes, toArray } = NUMBERS[type];
    const data = new Uint8Array(length * bytes);
    data.set(await this.#reader.bytes(data.length, key));
    if (type === BOOL) return Array.from(data, (value) => value !== 0);
    return toArray(data.buffer);
  }
}

function toNumber(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}
