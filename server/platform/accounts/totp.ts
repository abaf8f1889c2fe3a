import { Secret, TOTP } from 'otpauth';

const SECRET_BYTES = 20;
const STEP_S = 30;
const DIGITS = 6;
/** Accepts codes of the previous and the next step, because the clock of a phone may be off. */
const MAX_DRIFT_STEPS = 1;

/** Returns a new secret in base32. */
export function newTotpSecret(): string {
  return new Secret({ size: SECRET_BYTES }).base32;
}

/** Returns the content of the QR code that an authenticator app scans. */
export function totpUrl(secret: string, account: string): string {
  return `otpauth://totp/Capstan:${encodeURIComponent(account)}?secret=${secret}&issuer=Capstan&digits=${DIGITS}&period=${STEP_S}`;
}

/** Returns the code of a step: RFC 6238 with SHA-1, six digits and 30 s. */
export function totpCode(secret: string, step: number): string {
  return totpOf(secret).generate({ timestamp: step * STEP_S * 1000 });
}

/** Returns whether a text has the form of a code. */
export function isCode(text: string): boolean {
  return /^\d{6}$/.test(text);
}

/**
 * Returns the step of `code`. Returns undefined unless the code is valid now and its step is after `lastStep`, the step
 * of the last code used.
 */
export function totpStep(secret: string, code: string, nowMs: number, lastStep: number | null): number | undefined {
  if (!isCode(code)) return undefined;
  const totp = totpOf(secret);
  const current = totp.counter({ timestamp: nowMs });
  for (let step = current - MAX_DRIFT_STEPS; step <= current + MAX_DRIFT_STEPS; step++) {
    const timestamp = step * STEP_S * 1000;
    if (step > (lastStep ?? -1) && totp.validate({ token: code, timestamp, window: 0 }) === 0) return step;
  }
  return undefined;
}

function totpOf(secret: string): TOTP {
  return new TOTP({ secret: Secret.fromBase32(secret), algorithm: 'SHA1', digits: DIGITS, period: STEP_S });
}
