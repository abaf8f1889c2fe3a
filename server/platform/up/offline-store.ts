import { existsSync } from 'node:fs';
import path from 'node:path';
import { UsageError } from 'capstan/internal';
import { loadSecretKey } from '../accounts/secret-box';
import { openServiceStore, type ServiceStore } from '../store/store';
import { databaseLocation } from './database-location';
import { defaultDataDir } from './options';

/**
 * Opens the database of a data directory for a command on the service's machine. The service may be running.
 * Throws UsageError when the data directory was never initialized.
 */
export async function withServiceStore(
  { dataDir, databaseUrl }: { dataDir?: string; databaseUrl?: string },
  env: NodeJS.ProcessEnv,
  now: () => number,
  run: (store: ServiceStore) => Promise<void>,
): Promise<void> {
  const { CAPSTAN_DATA_DIR: variable = '', CAPSTAN_DATABASE_URL: ownUrl = '', DATABASE_URL: url = '' } = env;
  const root = path.resolve(dataDir ?? (variable === '' ? defaultDataDir(env) : variable));
  if (!existsSync(path.join(root, 'secret.key')))
    throw new UsageError(`--data-dir: ${root} is not initialized: run capstan up --data-dir ${root} first`);
  const address = [databaseUrl ?? '', ownUrl, url].find((candidate) => candidate !== '');
  const store = await openServiceStore(
    { location: databaseLocation(root, address), secretKey: loadSecretKey(root) },
    now,
  );
  try {
    await run(store);
  } finally {
    await store.close();
  }
}
