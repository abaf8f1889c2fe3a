import { ApiError } from '../../base/errors';
import { text, unsafe } from '../../base/json/schema-types';
import { show } from '../../base/json/validate';

const MAX_ENTRIES = 16;
const MAX_KEY = 64;
const MAX_VALUE = 512;

/** What clients attach to a stored object. `checkMetadata` checks the keys. */
export const METADATA = unsafe<Record<string, string>>({
  type: 'object',
  additionalProperties: text({
    maxLength: MAX_VALUE,
    description: `values that are strings of up to ${MAX_VALUE} characters`,
  }),
  maxProperties: MAX_ENTRIES,
  description: `an object of up to ${MAX_ENTRIES} entries`,
});

/** Throws ApiError for a key that is too long. */
export function checkMetadata(metadata: Readonly<Record<string, string>>): void {
  const longKey = Object.keys(metadata).find(({ length }) => length > MAX_KEY);
  if (longKey !== undefined)
    throw new ApiError(
      'invalid_value',
      `metadata: expected keys of up to ${MAX_KEY} characters, got ${show(longKey)}`,
      {
        param: 'metadata',
      },
    );
}
