import fs from 'node:fs';
import path from 'node:path';
import { newId } from '../access/ids';

const ID = /^gtw_[0-9a-z]{26}$/;

/** The same at every start on a data directory: whoever waits for changes to apply does not wait for a process that was killed, whose place this one takes. */
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
