import { input } from './json-schema';
import { ApiProblem } from './problem';

/** What cannot be undone is asked for by name. */
export const CONFIRMATION = input({
  confirm: { type: 'string', maxLength: 200, description: 'The name of what is to be deleted' },
});

/** @throws ApiProblem `invalid_argument` */
export function demandConfirmed({ confirm }: { confirm?: string }, what: string, name: string): void {
  if (confirm === name) return;
  const message = confirm === undefined ? `expected the ${what}, but it is missing` : `expected the ${what} as it is`;
  throw new ApiProblem('invalid_argument', `?confirm: ${message}`, { errors: [{ pointer: '?confirm', message }] });
}
