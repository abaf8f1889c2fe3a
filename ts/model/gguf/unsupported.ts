import { CapstanError } from '../../errors';
import type { JsonReader } from '../json-file';

/** As `JsonReader.mismatch`, for values that are valid but not supported. */
export function unsupported(metadata: JsonReader, key: string, expected: string, received: unknown): CapstanError {
  const { message, ...details } = metadata.mismatch(key, expected, received);
  return new CapstanError('unsupported_model', message, { param: key, expected, received: details.received });
}
