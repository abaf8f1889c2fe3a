import type { ApiKey, NewKey } from '../keys/api-key';
import { type AuditFilter, readAudit, readEvents, verifyAudit } from './audit';
import { type BudgetUse, dayOf } from '../check/budget';
import type { ChangeOptions } from './change';
import { openDatabase } from './database';
import {
  type FeedChanges,
  type FeedState,
  type KeyRecord,
  readChanges,
  readDigest,
  readPage,
  readState,
  type TableDigest,
} from '../feed/feed';
import { writeHeartbeat, type Heartbeat, deleteHeartbeat, type Propagation, readPropagation } from '../feed/gateways';
import {
  createKey,
  deleteKey,
  deleteOwner,
  editKey,
  finishRotation,
  type KeyEdit,
  type KeySpec,
  rotateKey,
  setKeyEnabled,
} from '../keys/changes';
import { type KeyPolicy, readKeyPolicy, setKeyPolicy } from '../keys/policy';
import { type KeyPage, type KeyPaging, pageKeys } from '../keys/pages';
import { describeKey, findKey, type KeyFilter, listKeys } from '../keys/queries';
import type { KeyUse } from '../check/uses';
import type { DatabaseLocation } from './location';
import {
  deleteDeployment,
  type DeploymentRef,
  findOwner,
  openDeployment,
  type OwnerRef,
  setAccessControl,
} from '../owners';
import type { OwnerName } from '../owner-names';
import type { AuditRow, Db, EventRow } from './schema';
import { readUsage, recordUses } from './usage';

/**
 * All operations on the key database. Arguments and results can be cloned. A change is on disk when its promise
 * resolves.
 */
export interface AccessStore {
  createKey(spec: KeySpec, options?: ChangeOptions): Promise<NewKey>;
  editKey(reference: string, edit: KeyEdit, options?: ChangeOptions): Promise<ApiKey>;
  setKeyEnabled(reference: string, isEnabled: boolean, options?: ChangeOptions): Promise<ApiKey>;
  rotateKey(reference: string, graceMs: number, options?: ChangeOptions): Promise<NewKey>;
  finishRotation(reference: string, options?: ChangeOptions): Promise<ApiKey>;
  deleteKey(reference: string, options?: ChangeOptions): Promise<ApiKey>;
  getKey(reference: string): Promise<ApiKey>;
  listKeys(filter?: KeyFilter): Promise<ApiKey[]>;
  pageKeys(filter: KeyFilter, paging: KeyPaging): Promise<KeyPage>;
  /** Returns the usage of a key per UTC day since `fromMs`, oldest first. */
  readUsage(reference: string, fromMs: number): Promise<{ day: number; requests: number; tokens: number }[]>;
  findOwner(owner: OwnerName): Promise<OwnerRef | undefined>;
  deleteOwner(owner: OwnerRef, options?: ChangeOptions): Promise<void>;
  openDeployment(owner: OwnerName, name: string, options?: ChangeOptions): Promise<DeploymentRef>;
  setAccessControl(deploymentId: string, isOn: boolean, options?: ChangeOptions): Promise<DeploymentRef>;
  deleteDeployment(deploymentId: string, options?: ChangeOptions): Promise<void>;
  /** Returns the policy of an organization, or null. */
  readKeyPolicy(orgId: string): Promise<KeyPolicy | null>;
  setKeyPolicy(orgId: string, policy: KeyPolicy | null, options?: ChangeOptions): Promise<void>;
  /** Returns audit rows, newest first. */
  readAudit(filter: AuditFilter): Promise<AuditRow[]>;
  /** Returns the number of the first row that is missing or changed, or undefined. */
  verifyAudit(): Promise<number | undefined>;
  /** Returns events after `afterSeq`, oldest first. */
  readEvents(afterSeq: number, limit?: number): Promise<EventRow[]>;
  /** Returns how many serving processes have applied a revision. */
  readPropagation(rev: number): Promise<Propagation>;
  readState(): Promise<FeedState>;
  readPage(afterId: string, limit: number): Promise<KeyRecord[]>;
  readChanges(rev: number): Promise<FeedChanges>;
  readDigest(): Promise<{ state: FeedState; digest: TableDigest } | undefined>;
  recordUses(uses: readonly KeyUse[]): Promise<BudgetUse[]>;
  writeHeartbeat(heartbeat: Heartbeat): Promise<void>;
  deleteHeartbeat(gatewayId: string): Promise<void>;
  close(): Promise<void>;
}

/** Opens a store in the calling thread, for commands. A server uses `openServingStore`. */
export async function openStore(location: DatabaseLocation, now: () => number = Date.now): Promise<AccessStore> {
  return createStore(await openDatabase(location), now);
}

export function createStore(db: Db, now: () => number): AccessStore {
  return {
    createKey: (spec, options) => createKey(db, spec, now(), options),
    editKey: (reference, edit, options) => editKey(db, reference, edit, now(), options),
    setKeyEnabled: (reference, isEnabled, options) => setKeyEnabled(db, reference, isEnabled, now(), options),
    rotateKey: (reference, graceMs, options) => rotateKey(db, reference, graceMs, now(), options),
    finishRotation: (reference, options) => finishRotation(db, reference, now(), options),
    deleteKey: (reference, options) => deleteKey(db, reference, now(), options),
    getKey: async (reference) => describeKey(db, await findKey(db, reference), now()),
    listKeys: (filter = {}) => listKeys(db, filter, now()),
    pageKeys: (filter, paging) => pageKeys(db, filter, paging, now()),
    readUsage: async (reference, fromMs) => readUsage(db, (await findKey(db, reference)).id, dayOf(fromMs)),
    findOwner: (owner) => findOwner(db, owner),
    deleteOwner: (owner, options) => deleteOwner(db, owner, now(), options),
    openDeployment: (owner, name, options) => openDeployment(db, owner, name, now(), options),
    setAccessControl: (deploymentId, isOn, options) => setAccessControl(db, deploymentId, isOn, now(), options),
    deleteDeployment: (deploymentId, options) => deleteDeployment(db, deploymentId, now(), options),
    readKeyPolicy: (orgId) => readKeyPolicy(db, orgId),
    setKeyPolicy: (orgId, policy, options) => setKeyPolicy(db, orgId, policy, now(), options),
    readAudit: (filter) => readAudit(db, filter),
    verifyAudit: () => verifyAudit(db),
    readEvents: (afterSeq, limit) => readEvents(db, afterSeq, limit),
    readPropagation: (rev) => readPropagation(db, rev, now()),
    readState: () => readState(db),
    readPage: (afterId, limit) => readPage(db, afterId, limit, now()),
    readChanges: (rev) => readChanges(db, rev, now()),
    readDigest: () => readDigest(db),
    recordUses: (uses) => recordUses(db, uses, now()),
    writeHeartbeat: (heartbeat) => writeHeartbeat(db, heartbeat, now()),
    deleteHeartbeat: (gatewayId) => deleteHeartbeat(db, gatewayId),
    close: () => db.destroy(),
  };
}
