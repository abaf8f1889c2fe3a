import { invalidFile, readFully, type WeightFile } from '../weight-file';

const BUFFER_BYTES = 1 << 20;

/**
 * Reads little-endian values of a file in order, through a buffer. The file is untrusted: a length is checked against
 * `limit` before memory is allocated for it.
 *
 * NOTE: `take` methods need their bytes in the buffer: call `need` before them.
 */
export class ByteReader {
  readonly #file: WeightFile;
  readonly #buffer: Buffer;
  /** Reading ends here: the end of the file, or of the part of it that a header may occupy. */
  readonly #limit: number;
  /** Offset in the file of the first byte in the buffer. */
  #base = 0;
  #at = 0;
  #end = 0;

  constructor(file: WeightFile, maxBytes: number) {
    this.#file = file;
    this.#limit = Math.min(file.size, maxBytes);
    this.#buffer = Buffer.allocUnsafe(Math.min(BUFFER_BYTES, Math.max(this.#limit, 1)));
  }

  /** Offset of the next byte in the file. */
  get position(): number {
    return this.#base + this.#at;
  }

  /** Whether the buffer holds the next `numBytes`. If not, call `need`. */
  has(numBytes: number): boolean {
    return this.#end - this.#at >= numBytes;
  }

  /** Reads until the buffer holds `numBytes`, at most 16. `what` names them in the error. */
  async need(numBytes: number, what: string): Promise<void> {
    if (this.has(numBytes)) return;
    this.checkRemaining(numBytes, what);
    this.#buffer.copy(this.#buffer, 0, this.#at, this.#end);
    this.#base += this.#at;
    this.#end -= this.#at;
    this.#at = 0;
    const free = Math.min(this.#buffer.length - this.#end, this.#limit - this.#base - this.#end);
    await readFully(this.#file, this.#buffer.subarray(this.#end, this.#end + free), this.#base + this.#end);
    this.#end += free;
  }

  /** @throws CapstanError `invalid_model` if fewer than `numBytes` are left. */
  checkRemaining(numBytes: number | bigint, what: string): void {
    const remaining = this.#limit - this.position;
    if (numBytes > remaining)
      throw invalidFile(
        `${this.#file.name}: ${what}`,
        this.#limit < this.#file.size
          ? `a header of at most ${this.#limit} bytes`
          : `${numBytes} bytes at ${this.position}`,
        `${remaining} to the end of the file: the file is damaged or truncated. Download it again`,
      );
  }

  takeUint32(): number {
    const value = this.#buffer.readUInt32LE(this.#at);
    this.#at += 4;
    return value;
  }

  takeUint64(): bigint {
    const value = this.#buffer.readBigUInt64LE(this.#at);
    this.#at += 8;
    return value;
  }

  /** Returns a copy of the next bytes. */
  async bytes(numBytes: number, what: string): Promise<Buffer> {
    this.checkRemaining(numBytes, what);
    const bytes = Buffer.allocUnsafe(numBytes);
    const numBuffered = Math.min(numBytes, this.#end - this.#at);
    this.#buffer.copy(bytes, 0, this.#at, this.#at + numBuffered);
    await readFully(this.#file, bytes.subarray(numBuffered), this.position + numBuffered);
    this.#moveTo(this.position + numBytes);
    return bytes;
  }

  /** Returns the next bytes as text. They must be in the buffer. */
  takeText(numBytes: number): string {
    const text = this.#buffer.toString('utf8', this.#at, this.#at + numBytes);
    this.#at += numBytes;
    return text;
  }

  skip(numBytes: number, what: string): void {
    this.checkRemaining(numBytes, what);
    this.#moveTo(this.position + numBytes);
  }

  #moveTo(position: number): void {
    if (position <= this.#base + this.#end) {
      this.#at = position - this.#base;
      return;
    }
    this.#base = position;
    this.#at = 0;
    this.#end = 0;
  }
}
