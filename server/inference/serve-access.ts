import type { Access } from '../access';
import type { Log } from '../base/log';
import type { ServeOptions } from './serve-options';
import { packageVersion } from '../base/version';

/** Returns whether requests need a key: the value of `accessControl`, by default whether keys are configured. */
export function needsKey({
  accessControl,
  apiKeys,
  keysDb,
}: Pick<ServeOptions, 'accessControl' | 'apiKeys' | 'keysDb'>): boolean {
  return accessControl ?? (apiKeys.length > 0 || keysDb !== undefined);
}

/** Opens the key check of this server. Returns undefined if requests need no key. */
export async function openAccess(options: ServeOptions, log: Log): Promise<Access | undefined> {
  if (!needsKey(options)) return undefined;
  // Imported here, because a server without keys needs no database library.
  const { Access, describeLocation, parseOwner, resolveServeLocation } = await import('../access/index.js');
  const { apiKeys, owner, deployment, onRevoke, trustedProxies } = options;
  const location = resolveServeLocation({ ...options, accessControl: true });
  const access = await Access.open({
    apiKeys,
    log,
    onRevoke,
    version: packageVersion(),
    ...(trustedProxies.length === 0 ? {} : { trustedProxies }),
    ...(location === undefined ? {} : { location }),
    ...(owner === undefined ? {} : { owner: parseOwner(owner) }),
    ...(deployment === undefined ? {} : { deployment }),
  });
  const { numKeys } = access.stats();
  log.info(
    {
      ...(location === undefined ? {} : { database: describeLocation(location), numKeys }),
      ...(apiKeys.length === 0 ? {} : { numFixedKeys: apiKeys.length }),
    },
    'access control is on',
  );
  if (numKeys + apiKeys.length === 0)
    log.warn({}, 'no access key exists, so every request is refused. Create one with: capstan keys create --name NAME');
  return access;
}
