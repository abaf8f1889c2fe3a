import { input } from './json-schema';
import { ApiProblem } from './problem';

/** Query of destructive requests: the caller repeats the name of the object. */
export const CONFIRMATION = input({
  confirm: { type: 'string', maxLength: 200, description: 'Name of the object to delete' },
});

/** Throws ApiProblem `invalid_argument` unless `confirm` equals `name`. @param what 'name', 'slug' or 'address'. */
export function requireConfirmation({ confirm }: { confirm?: string }, what: string, name: string): void {
  if (confirm === name) return;
  const message = confirm === undefined ? `expected the ${what}, but it is missing` : `expected the exact ${what}`;
  throw new ApiProblem('invalid_argument', `?confirm: ${message}`, { errors: [{ pointer: '?confirm', message }] });
}
