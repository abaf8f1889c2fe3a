import { resolve } from 'node:path';
import type { Access } from '../../access';
import { ApiError } from '../../base/errors';
import type { Log } from '../../base/log';
import type { Route } from '../../http/routes';
import { BatchService } from '../../storage/batches/batch-service';
import { batchRoutes } from '../../storage/batches/routes';
import type { App } from '../app';
import type { ServeOptions } from '../serve-options';
import { EngineLines, type LoadedEngines } from './engine-lines';

const REPLICA =
  'Files and batches belong to the owner of a key, and requests to a public deployment have none: send the request with a key to the API of all deployments';
const NO_FOLDER =
  'Files and batches need a folder: start the server with --data-dir, or pass dataDir to createHandler()';
const LOCKED = 'Another server keeps its files and batches in the same data directory: send the request there';

/** The routes of files and batches. Without a folder they answer 501 with the reason. */
export interface OpenedBatches {
  routes: readonly Route[];
  serve(this: void, app: App, loaded: LoadedEngines): void;
  close(this: void): Promise<void>;
}

export async function openBatches(
  { dataDir, replicaSecret, batches, engine }: ServeOptions,
  access: Access | undefined,
  log: Log,
): Promise<OpenedBatches> {
  let refusal = replicaSecret === undefined ? NO_FOLDER : REPLICA;
  let service: BatchService | undefined;
  if (dataDir !== undefined && replicaSecret === undefined) {
    const folder = resolve(dataDir);
    service = await BatchService.open({ ...batches, dataDir: folder, log });
    refusal = LOCKED;
    if (service === undefined)
      log.warn({ folder }, 'another server keeps its files and batches in this data directory: this one refuses them');
  }
  const { maxNumSeqs } = engine;
  const { concurrency } = batches;
  return {
    routes: batchRoutes(() => {
      if (service === undefined) throw new ApiError('not_implemented', refusal);
      return { service };
    }).map((route) => ({ ...route, isPrivate: true })),
    serve: (app, loaded) => service?.serve(new EngineLines({ app, loaded, access, maxNumSeqs, concurrency })),
    close: async () => service?.close(),
  };
}
