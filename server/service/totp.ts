import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';

const BASE32 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567';
const SECRET_BYTES = 20;
const STEP_MS = 30_000;
const DIGITS = 6;
/** A phone's clock may be off by one step. */
const MAX_DRIFT = 1;

/** A new secret in base32, as authenticators take it. */
export function newTotpSecret(): string {
  let bits = '';
  for (const byte of randomBytes(SECRET_BYTES)) bits += byte.toString(2).padStart(8, '0');
  return (bits.match(/.{5}/g) as string[]).map((group) => BASE32[Number.parseInt(group, 2)]).join('');
}

/** What an authenticator reads from a QR code. */
export function totpUrl(secret: string, account: string): string {
  return `otpauth://totp/${encodeURIComponent('Capstan')}:${encodeURIComponent(account)}?secret=${secret}&issuer=Capstan&digits=${DIGITS}&period=${STEP_MS / 1000}`;
}

/** RFC 6238 with SHA-1, six digits, 30 s. */
export function totpCode(secret: string, step: number): string {
  const counter = Buffer.alloc(8);
  counter.writeBigUInt64BE(BigInt(step));
  const digest = createHmac('sha1', decodeBase32(secret)).update(counter).digest();
  const offset = digest[digest.length - 1] & 15;
  return String((digest.readUInt32BE(offset) & 0x7fff_ffff) % 10 ** DIGITS).padStart(DIGITS, '0');
}

/** The step that a code is of, where it is good now and later than the last one used; else undefined. */
export function totpStep(secret: string, code: string, nowMs: number, lastStep: number | null): number | undefined {
  const current = Math.floor(nowMs / STEP_MS);
  for (let step = current - MAX_DRIFT; step <= current + MAX_DRIFT; step++) {
    if (step > (lastStep ?? -1) && isSame(totpCode(secret, step), code)) return step;
  }
  return undefined;
}

function isSame(expected: string, code: string): boolean {
  return /^\d{6}$/.test(code) && timingSafeEqual(Buffer.from(expected), Buffer.from(code));
}

function decodeBase32(text: string): Buffer {
  const bits = [...text].map((letter) => BASE32.indexOf(letter).toString(2).padStart(5, '0')).join('');
  return Buffer.from((bits.match(/.{8}/g) as string[]).map((octet) => Number.parseInt(octet, 2)));
}
