import { checkText } from 'capstan/internal';
import { ServiceError } from '../store/errors';

const MIN_PASSWORD_LENGTH = 10;
const MAX_PASSWORD_LENGTH = 256;
const EMAIL = /^[^\s@\p{Cc}]{1,64}@[^\s@\p{Cc}]{1,190}$/u;
/** The password hash of an account that signs in with an identity provider alone. No password matches it. */
export const NO_PASSWORD = '';
const SLUG = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;

/** Returns the address trimmed and in lower case, as it is stored and compared. */
export function checkEmail(value: unknown): string {
  const email = typeof value === 'string' ? value.trim().normalize('NFC').toLowerCase() : '';
  if (!EMAIL.test(email))
    throw new ServiceError('invalid_argument', 'email: expected an address such as you@example.com');
  return email;
}

export function checkPassword(value: unknown, email: string): string {
  const password = typeof value === 'string' ? value : '';
  const length = [...password].length;
  if (length < MIN_PASSWORD_LENGTH || length > MAX_PASSWORD_LENGTH)
    throw new ServiceError(
      'invalid_argument',
      `password: expected ${MIN_PASSWORD_LENGTH} to ${MAX_PASSWORD_LENGTH} characters`,
    );
  if (password.toLowerCase() === email)
    throw new ServiceError('invalid_argument', 'password: expected something other than the email address');
  return password;
}

export function checkDisplayName(value: unknown): string {
  return checkText('name', value, 100);
}

/** Checks a DNS label. */
export function checkSlug(value: unknown): string {
  if (typeof value !== 'string' || !SLUG.test(value))
    throw new ServiceError(
      'invalid_argument',
      'slug: expected 1 to 63 lowercase letters, digits and hyphens, without a hyphen at either end',
    );
  return value;
}
