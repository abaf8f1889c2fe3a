import { checkText } from '../access/key-values';
import { ServiceError } from './errors';

const MIN_PASSWORD_LENGTH = 10;
const MAX_PASSWORD_LENGTH = 256;
const EMAIL = /^[^\s@\p{Cc}]{1,64}@[^\s@\p{Cc}]{1,190}$/u;
const SLUG = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/;

/** As it is kept and compared: in lower case. */
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
    throw new ServiceError('invalid_argument', 'password: expected something else than the address');
  return password;
}

export function checkDisplayName(value: unknown): string {
  return checkText('name', value, 100);
}

/** Part of addresses: a DNS label. */
export function checkSlug(value: unknown): string {
  if (typeof value !== 'string' || !SLUG.test(value))
    throw new ServiceError(
      'invalid_argument',
      'slug: expected 1 to 63 small letters, digits and dashes, with no dash at either end',
    );
  return value;
}
