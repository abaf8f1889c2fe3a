import fs from 'node:fs';
import path from 'node:path';
import { newId } from 'capstan/internal';

const ID = /^gtw_[0-9a-z]{26}$/;

/**
 * Returns the id of this gateway. It stays the same for a data directory, so that nothing waits for the acknowledgement
 * of a killed process: its successor has the same id.
 */
export function loadGatewayId(dataDir: string): string {
  const file = path.join(dataDir, 'gateway.id');
  const known = readText(file).trim();
  if (ID.test(known)) return known;
  const id = newId('gtw');
  fs.writeFileSync(file, `${id}\n`, { mode: 0o600 });
  return id;
}

function readText(file: string): string {
  try {
    return fs.readFileSync(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    return '';
  }
}
