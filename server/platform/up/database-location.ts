import path from 'node:path';
import type { DatabaseLocation } from 'capstan/internal';

/** Returns PostgreSQL if a URL is configured, else the SQLite file in the data directory. */
export function databaseLocation(root: string, databaseUrl: string | undefined): DatabaseLocation {
  return databaseUrl === undefined
    ? { kind: 'file', file: path.join(root, 'capstan.db') }
    : { kind: 'postgres', url: databaseUrl };
}
