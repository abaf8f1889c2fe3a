import { CapstanError } from '../errors';

/** Maximum length of a path in a message. */
const MAX_SHOWN = 200;

/** Creates an error for an unsupported schema. `path` is a JSON pointer that ends with the keyword. */
export function unsupported(path: string, reason: string): CapstanError {
  const shown = path.length > MAX_SHOWN ? `${path.slice(0, MAX_SHOWN)}…` : path;
  return new CapstanError('invalid_argument', `JSON schema: ${shown}: ${reason}`, {
    param: 'schema',
    expected: reason,
    received: shown,
  });
}
