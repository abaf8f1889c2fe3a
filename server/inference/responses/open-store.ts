import { resolve } from 'node:path';
import type { ServeOptions } from '../serve-options';
import { FolderResponseStore } from '../../storage/responses/folder-store';
import { MemoryResponseStore, type ResponseStore } from '../../storage/responses/store';

/**
 * Opens the store of a server: in its data directory if it has one, otherwise in memory. A replica has none, because
 * the next request may reach another replica.
 */
export async function openResponseStore({
  dataDir,
  replicaSecret,
  storedResponses: limits,
}: Pick<ServeOptions, 'dataDir' | 'replicaSecret' | 'storedResponses'>): Promise<ResponseStore | undefined> {
  if (replicaSecret !== undefined || limits.maxBytes === 0) return undefined;
  if (dataDir === undefined) return new MemoryResponseStore(limits);
  return FolderResponseStore.open(resolve(dataDir, 'responses'), limits);
}
