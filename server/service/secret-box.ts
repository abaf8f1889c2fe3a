import { createCipheriv, createDecipheriv, createHmac, randomBytes } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { ServiceError } from './errors';

const KEY_BYTES = 32;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;
const KEY_FILE = 'secret.key';

/** The key of a data directory, made at the first start; readable for its user alone. It is not in the database, so a copy of that opens nothing. */
export function loadSecretKey(dataDir: string): Buffer {
  const file = path.join(dataDir, KEY_FILE);
  try {
    fs.writeFileSync(file, randomBytes(KEY_BYTES), { mode: 0o600, flag: 'wx' });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  const key = fs.readFileSync(file);
  if (key.length !== KEY_BYTES)
    throw new ServiceError(
      'invalid_argument',
      `${file}: expected ${KEY_BYTES} bytes, got ${key.length}: put back the file that belongs to this database`,
    );
  if ((fs.statSync(file).mode & 0o077) !== 0) fs.chmodSync(file, 0o600);
  return key;
}

/** Keeps what has to be read again out of the database's reach: AES-256-GCM. */
export class SecretBox {
  readonly #key: Uint8Array;

  constructor(key: Uint8Array) {
    this.#key = key;
  }

  /** @param purpose Where the text belongs, such as `totp usr_…`: elsewhere it does not open. */
  seal(text: string, purpose: string): string {
    const nonce = randomBytes(NONCE_BYTES);
    const cipher = createCipheriv('aes-256-gcm', this.#key, nonce).setAAD(Buffer.from(purpose));
    return Buffer.concat([nonce, cipher.update(text, 'utf8'), cipher.final(), cipher.getAuthTag()]).toString('base64');
  }

  /** @throws ServiceError when it was sealed with another key, for another purpose, or changed. */
  open(sealed: string, purpose: string): string {
    const bytes = Buffer.from(sealed, 'base64');
    try {
      const decipher = createDecipheriv('aes-256-gcm', this.#key, bytes.subarray(0, NONCE_BYTES), {
        authTagLength: TAG_BYTES,
      }).setAAD(Buffer.from(purpose));
      decipher.setAuthTag(bytes.subarray(bytes.length - TAG_BYTES));
      return (
        decipher.update(bytes.subarray(NONCE_BYTES, bytes.length - TAG_BYTES), undefined, 'utf8') +
        decipher.final('utf8')
      );
    } catch {
      throw new ServiceError(
        'invalid_argument',
        `a stored secret cannot be opened: ${KEY_FILE} is not the one that it was written with`,
      );
    }
  }
  /** Tells texts apart without keeping them: whoever has the database alone cannot try what a short one was. */
  digest(text: string): string {
    return createHmac('sha256', this.#key).update(text).digest('hex');
  }
}
