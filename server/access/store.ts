import type { ApiKey, NewKey } from './api-key';
import { openDatabase } from './database';
import { type FeedChanges, type FeedState, type KeyRecord, type KeyUse, readChanges, readDigest, readPage, readState, recordUses, type TableDigest } from './feed';
import { type ChangeOptions, createKey, deleteKey, deleteOwner, editKey, finishRotation, type KeyEdit, type KeySpec, rotateKey, setKeyEnabled } from './key-changes';
import { describeKey, findKey, type KeyFilter, listKeys } from './key-queries';
import type { DatabaseLocation } from './location';
import { deleteDeployment, type DeploymentRef, findOwner, openDeployment, type OwnerName, type OwnerRef, setAccessControl } from './owners';
import type { Db } from './schema';

/** All that is done with the database, in values that can cross a thread. Every change is on disk when its promise resolves. */
export interface AccessStore {
  createKey(spec: KeySpec): Promise<NewKey>;
  editKey(reference: string, edit: KeyEdit, options?: ChangeOptions): Promise<ApiKey>;
  setKeyEnabled(reference: string, isEnabled: boolean, options?: ChangeOptions): Promise<ApiKey>;
  rotateKey(reference: string, graceMs: number, options?: ChangeOptions): Promise<NewKey>;
  finishRotation(reference: string, options?: ChangeOptions): Promise<ApiKey>;
  deleteKey(reference: string, options?: ChangeOptions): Promise<ApiKey>;
  getKey(reference: string): Promise<ApiKey>;
  listKeys(filter?: KeyFilter): Promise<ApiKey[]>;
  findOwner(owner: OwnerName): Promise<OwnerRef | undefined>;
  deleteOwner(owner: OwnerRef): Promise<void>;
  openDeployment(owner: OwnerName, name: string): Promise<DeploymentRef>;
  setAccessControl(deploymentId: string, isOn: boolean): Promise<DeploymentRef>;
  deleteDeployment(deploymentId: string): Promise<void>;
  readState(): Promise<FeedState>;
  readPage(afterId: string, limit: number): Promise<KeyRecord[]>;
  readChanges(rev: number): Promise<FeedChanges>;
  readDigest(): Promise<{ state: FeedState; digest: TableDigest } | undefined>;
  recordUses(uses: readonly KeyUse[]): Promise<void>;
  close(): Promise<void>;
}

/** A store in this thread: for commands, which have nothing else to do. A server takes one in a thread of its own. */
export async function openStore(location: DatabaseLocation, now: () => number = Date.now): Promise<AccessStore> {
  return createStore(await openDatabase(location), now);
}

function createStore(db: Db, now: () => number): AccessStore {
  return {
    createKey: (spec) => createKey(db, spec, now()),
    editKey: (reference, edit, options) => editKey(db, reference, edit, now(), options),
    setKeyEnabled: (reference, isEnabled, options) => setKeyEnabled(db, reference, isEnabled, now(), options),
    rotateKey: (reference, graceMs, options) => rotateKey(db, reference, graceMs, now(), options),
    finishRotation: (reference, options) => finishRotation(db, reference, now(), options),
    deleteKey: (reference, options) => deleteKey(db, reference, now(), options),
    getKey: async (reference) => describeKey(db, await findKey(db, reference), now()),
    listKeys: (filter = {}) => listKeys(db, filter, now()),
    findOwner: (owner) => findOwner(db, owner),
    deleteOwner: (owner) => deleteOwner(db, owner, now()),
    openDeployment: (owner, name) => openDeployment(db, owner, name, now()),
    setAccessControl: (deploymentId, isOn) => setAccessControl(db, deploymentId, isOn, now()),
    deleteDeployment: (deploymentId) => deleteDeployment(db, deploymentId, now()),
    readState: () => readState(db),
    readPage: (afterId, limit) => readPage(db, afterId, limit),
    readChanges: (rev) => readChanges(db, rev),
    readDigest: () => readDigest(db),
    recordUses: (uses) => recordUses(db, uses),
    close: () => db.destroy(),
  };
}
