import type { Access } from './access';
import type { Log } from './log';
import type { ServeOptions } from './serve-options';
import { packageVersion } from './version';

/** Whether requests need a key: as asked for; else when there are keys to compare with. */
export function needsKey({
  accessControl,
  apiKeys,
  keysDb,
}: Pick<ServeOptions, 'accessControl' | 'apiKeys' | 'keysDb'>): boolean {
  return accessControl ?? (apiKeys.length > 0 || keysDb !== undefined);
}

/** The key check of this server, or undefined when everyone is let in. */
export async function openAccess(options: ServeOptions, log: Log): Promise<Access | undefined> {
  if (!needsKey(options)) return undefined;
  // Here, as a server without keys needs no database library.
  const { Access, describeLocation, parseOwner, resolveServeLocation } = await import('./access/index.js');
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
    log.warn(
      {},
      'there is no key yet, so that every request is refused: make one with capstan keys create --name NAME',
    );
  return access;
}
