import path from 'node:path';
import type { DatabaseLocation } from '../access/location';

/** PostgreSQL where an address is given, else the file in the data directory. */
export function databaseLocation(root: string, databaseUrl: string | undefined): DatabaseLocation {
  return databaseUrl === undefined
    ? { kind: 'file', file: path.join(root, 'capstan.db') }
    : { kind: 'postgres', url: databaseUrl };
}
