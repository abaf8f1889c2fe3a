import { CapstanError } from '../errors';

/** Of names in messages. */
const MAX_SHOWN = 200;

/** A JSON Schema that cannot be kept to: `path` is a JSON pointer that ends in the keyword. */
export function unsupported(path: string, reason: string): CapstanError {
  const shown = path.length > MAX_SHOWN ? `${path.slice(0, MAX_SHOWN)}…` : path;
  return new CapstanError('invalid_argument', `JSON schema: ${shown}: ${reason}`, {
    param: 'schema',
    expected: reason,
    received: shown,
  });
}
