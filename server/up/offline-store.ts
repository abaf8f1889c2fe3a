import { existsSync } from 'node:fs';
import path from 'node:path';
import { UsageError } from '../flag-values';
import { loadSecretKey } from '../service/secret-box';
import { openServiceStore, type ServiceStore } from '../service/store';
import { databaseLocation } from './database-location';
import { defaultDataDir } from './options';

/** The database of a data directory, for commands on the service's machine; the service may run meanwhile. @throws UsageError where no service ever ran */
export async function withServiceStore(
  { dataDir, databaseUrl }: { dataDir?: string; databaseUrl?: string },
  env: NodeJS.ProcessEnv,
  now: () => number,
  run: (store: ServiceStore) => Promise<void>,
): Promise<void> {
  const { CAPSTAN_DATA_DIR: variable = '', CAPSTAN_DATABASE_URL: ownUrl = '', DATABASE_URL: url = '' } = env;
  const root = path.resolve(dataDir ?? (variable === '' ? defaultDataDir(env) : variable));
  if (!existsSync(path.join(root, 'secret.key')))
    throw new UsageError(`--data-dir: no service ever ran on ${root}: capstan up --data-dir ${root} makes it`);
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
