import { createCipheriv, createDecipheriv, createHmac, randomBytes } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { ServiceError } from '../store/errors';

const KEY_BYTES = 32;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** Where the encryption key of a data directory is. */
export function secretKeyFile(dataDir: string): string {
  return path.join(dataDir, 'secret.key');
}

/**
 * Returns the encryption key of a data directory, and creates it at the first start. Only its user can read the file.
 * It is not in the database, so a copy of the database reveals no secret.
 */
export function loadSecretKey(dataDir: string): Buffer {
  const file = secretKeyFile(dataDir);
  try {
    fs.writeFileSync(file, randomBytes(KEY_BYTES), { mode: 0o600, flag: 'wx' });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  const key = fs.readFileSync(file);
  if (key.length !== KEY_BYTES)
    throw new ServiceError(
      'invalid_argument',
      `${file}: expected ${KEY_BYTES} bytes, got ${key.length}: restore the file that belongs to this database`,
    );
  if ((fs.statSync(file).mode & 0o077) !== 0) fs.chmodSync(file, 0o600);
  return key;
}

/** Removes a key that was just created, and has sealed nothing. */
export function removeSecretKey(dataDir: string): void {
  fs.rmSync(secretKeyFile(dataDir), { force: true });
}

/**
 * Refuses a key that was just created for a database that already has accounts, and removes it. Its secrets were sealed
 * with another one. Throws ServiceError that says how to go on.
 */
export function refuseNewKey(dataDir: string): never {
  const file = secretKeyFile(dataDir);
  removeSecretKey(dataDir);
  throw new ServiceError(
    'invalid_argument',
    `${file}: expected the file that belongs to this database, got none: copy it from the backup, or from the data ` +
      'directory of another service of the database. If it is lost, secret variables and second factors are lost too; ' +
      `make a new one with: head -c ${KEY_BYTES} /dev/urandom > ${file}`,
  );
}

/** Encrypts secrets for the database with AES-256-GCM. */
export class SecretBox {
  readonly #key: Uint8Array;

  constructor(key: Uint8Array) {
    this.#key = key;
  }

  /** @param purpose Use of the text, such as `totp usr_…`. {@link open} needs the same value. */
  seal(text: string, purpose: string): string {
    const nonce = randomBytes(NONCE_BYTES);
    const cipher = createCipheriv('aes-256-gcm', this.#key, nonce).setAAD(Buffer.from(purpose));
    return Buffer.concat([nonce, cipher.update(text, 'utf8'), cipher.final(), cipher.getAuthTag()]).toString('base64');
  }

  /** @throws ServiceError if it was sealed with another key or for another purpose, or was changed. */
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
        `cannot decrypt a stored secret: secret.key is not the file it was encrypted with`,
      );
    }
  }

  /** Returns a keyed digest, to compare texts without storing them. Without the key, short texts cannot be guessed. */
  digest(text: string): string {
    return createHmac('sha256', this.#key).update(text).digest('hex');
  }
}
