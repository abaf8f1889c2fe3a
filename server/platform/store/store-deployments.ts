import type { OwnerRef } from 'capstan/internal';
import { demandOwner, type ServiceActor, visibleOwners } from '../accounts/actor';
import { createImage, deleteImage, listImages, type NewImageSpec } from '../deployments/catalog';
import { reconcileContainer, listBusyContainerIds } from '../control/container-control';
import {
  commandContainer,
  type ContainerEdit,
  createContainer,
  deleteContainer,
  deployContainer,
  editContainer,
  getContainer,
  type NewContainer,
  pageContainers,
  previewDeploy,
} from '../deployments/containers';
import {
  reconcileDeployment,
  listDeploymentIds,
  listOwnReplicaIds,
  saveLastLines,
  wakeDeployment,
} from '../control/deployment-control';
import {
  deleteDeployment,
  type DeploymentEdit,
  demandDeployment,
  editDeployment,
  removeDeployment,
  switchAccessControl,
  applyIntent,
} from '../deployments/commands';
import {
  createDataSource,
  type DataSourceEdit,
  deleteDataSource,
  editDataSource,
  findUnmeasured,
  getDataSource,
  listDataSources,
  type NewDataSourceSpec,
  saveMeasure,
  setMeasureState,
} from '../deployments/data-sources';
import {
  cancelPull,
  createPull,
  type NewPull,
  type PullAgain,
  pullAgain,
  readPreviewAccess,
} from '../deployments/data-pulls';
import {
  admitPull,
  failPull,
  finishPull,
  listPulledSources,
  type PullKey,
  type PullListing,
  type PullProgress,
  savePullProgress,
  takePull,
} from '../deployments/pull-jobs';
import type { DeploymentState } from '../deployments/deployment-state';
import {
  pageDeployments,
  pageTargetEvents,
  pageVersions,
  readDeployment,
  readTargetEvents,
  readVersion,
} from '../deployments/views';
import { createDeployment, type NewDeployment } from '../deployments/deployments';
import type { FolderMeasure } from '../deployments/measure-folder';
import { readHomeSource, readLaunch } from '../control/launch';
import { type Lease, type LeaseTerm, readLease, releaseLease, renewLease, takeLease } from '../control/lease';
import { readCapacity } from '../deployments/capacity';
import type { StoreContext } from './store-context';
import { activateVersion, createVersion, deleteVersion, type NewVersion } from '../deployments/versions';
import { listUpstreamVersions } from '../upstreams/upstream-versions';
import type { Intent } from '../control/intents';
import type { Activity, ControlPolicy, Observation } from '../control/records';
import type { DriverCapacity } from '../driver/driver';

/** Methods for users: images, data, containers, deployments and versions. Each method checks the actor's rights. */
export function deploymentMethods(context: StoreContext) {
  const { db, now, options } = context;
  const demandRead = async (actor: ServiceActor, id: string) => {
    await demandDeployment(db, actor, id, 'read');
  };
  return {
    listImages: () => listImages(db),
    createImage: (actor: ServiceActor, spec: NewImageSpec) => createImage(db, actor, spec, now()),
    deleteImage: (actor: ServiceActor, id: string) => deleteImage(db, actor, id, now()),
    listDataSources: (actor: ServiceActor) => listDataSources(db, actor),
    createDataSource: (actor: ServiceActor, spec: NewDataSourceSpec) =>
      createDataSource(db, actor, spec, options.machine.dataRoots, now()),
    getDataSource: (actor: ServiceActor, id: string) => getDataSource(db, actor, id),
    editDataSource: (actor: ServiceActor, id: string, edit: DataSourceEdit, ifRev?: number) =>
      editDataSource(db, actor, id, edit, options.machine.dataRoots, now(), ifRev),
    /** The caller must also notify the DataMeasurer. */
    setMeasureState: (actor: ServiceActor, id: string, state: 'pending' | 'cancelled') =>
      setMeasureState(db, actor, id, state),
    findUnmeasured: () => findUnmeasured(db),
    saveMeasure: (source: { id: string; locator: string }, outcome: FolderMeasure | { error: string }) =>
      saveMeasure(db, source, outcome, now()),
    /** Returns a folder that the caller must delete with the HubPuller, or null. */
    deleteDataSource: (actor: ServiceActor, id: string) => deleteDataSource(db, actor, id, now()),
    createPull: (actor: ServiceActor, request: NewPull) => createPull(context, actor, request),
    pullAgain: (actor: ServiceActor, id: string, request: PullAgain) => pullAgain(context, actor, id, request),
    cancelPull: (actor: ServiceActor, id: string) => cancelPull(context, actor, id),
    readPreviewAccess: (actor: ServiceActor, question: Parameters<typeof readPreviewAccess>[2]) =>
      readPreviewAccess(context, actor, question),
    takePull: (active: readonly string[]) => takePull(context, active),
    admitPull: (key: PullKey, listing: PullListing) => admitPull(context, key, listing),
    savePullProgress: (key: PullKey, progress: PullProgress) => savePullProgress(context, key, progress),
    finishPull: (key: PullKey) => finishPull(context, key, now()),
    failPull: (key: PullKey, error: { code: string; message: string }) => failPull(context, key, error, now()),
    listPulledSources: () => listPulledSources(context),
    readCapacity: (actor: ServiceActor) => readCapacity(db, options.machine, actor),

    pageContainers: (actor: ServiceActor, filter: { owner?: OwnerRef; after?: string; limit: number }) =>
      pageContainers(db, actor, filter),
    getContainer: (actor: ServiceActor, id: string) => getContainer(db, actor, id),
    createContainer: (actor: ServiceActor, spec: NewContainer) => createContainer(context, actor, spec),
    editContainer: (actor: ServiceActor, id: string, edit: ContainerEdit, ifRev?: number) =>
      editContainer(context, actor, id, edit, ifRev),
    commandContainer: (actor: ServiceActor, id: string, event: 'start' | 'stop') =>
      commandContainer(context, actor, id, event),
    removeContainer: (actor: ServiceActor, id: string, ifRev?: number) => deleteContainer(context, actor, id, ifRev),
    previewDeploy: (actor: ServiceActor, id: string) => previewDeploy(context, actor, id),
    deployContainer: (actor: ServiceActor, id: string, spec: NewDeployment) =>
      deployContainer(context, actor, id, spec),

    pageDeployments: async (
      actor: ServiceActor,
      {
        owner,
        ...filter
      }: { owner?: OwnerRef; states?: readonly DeploymentState[]; q?: string; after?: string; limit: number },
    ) => {
      if (owner !== undefined) await demandOwner(db, actor, owner, 'read');
      return pageDeployments(db, { ...filter, owners: owner === undefined ? await visibleOwners(db, actor) : [owner] });
    },
    getDeployment: async (actor: ServiceActor, id: string) => {
      await demandRead(actor, id);
      return readDeployment(db, id);
    },
    createDeployment: (actor: ServiceActor, spec: NewDeployment) => createDeployment(context, actor, spec),
    editDeployment: (actor: ServiceActor, id: string, edit: DeploymentEdit, ifRev?: number) =>
      editDeployment(context, actor, id, edit, ifRev),
    applyIntent: (actor: ServiceActor, id: string, intent: Intent) => applyIntent(context, actor, id, intent),
    switchAccessControl: (actor: ServiceActor, id: string, isOn: boolean, ifRev?: number) =>
      switchAccessControl(context, actor, id, isOn, ifRev),
    /** Returns before its replicas have stopped. */
    discardDeployment: (actor: ServiceActor, id: string, ifRev?: number) => deleteDeployment(context, actor, id, ifRev),

    listUpstreamVersions: (actor: ServiceActor, id: string) => listUpstreamVersions(context, actor, id),
    pageVersions: async (actor: ServiceActor, id: string, paging: { after?: number; limit: number }) => {
      await demandRead(actor, id);
      return pageVersions(db, id, paging);
    },
    getVersion: async (actor: ServiceActor, id: string, number: number) => {
      await demandRead(actor, id);
      return readVersion(db, id, number);
    },
    createVersion: (actor: ServiceActor, id: string, spec: NewVersion) => createVersion(context, actor, id, spec),
    activateVersion: (actor: ServiceActor, id: string, number: number) => activateVersion(context, actor, id, number),
    deleteVersion: (actor: ServiceActor, id: string, number: number) => deleteVersion(context, actor, id, number),
    pageDeploymentEvents: async (actor: ServiceActor, id: string, paging: { beforeSeq?: number; limit: number }) => {
      await demandRead(actor, id);
      return pageTargetEvents(db, id, paging);
    },
    readDeploymentEvents: async (actor: ServiceActor, id: string, afterSeq: number, limit: number) => {
      await demandRead(actor, id);
      return readTargetEvents(db, id, afterSeq, limit);
    },
  };
}

/** Methods for the controller. They check no rights. */
export function controlMethods(context: StoreContext) {
  const { db, options } = context;
  return {
    /** Replaces what the driver found at startup. */
    setCapacity: (capacity: DriverCapacity): Promise<void> => {
      context.options.machine.capacity = capacity;
      return Promise.resolve();
    },
    listDeploymentIds: () => listDeploymentIds(db),
    listBusyContainerIds: () => listBusyContainerIds(db),
    readLease: () => readLease(db),
    takeLease: (holder: string, seen: Lease) => takeLease(db, holder, seen, context.loopNow()),
    renewLease: (epoch: number) => renewLease(db, epoch, context.loopNow()),
    releaseLease: (epoch: number) => releaseLease(db, epoch),
    /** Returns the ids of replicas that this service runs. */
    listOwnReplicaIds: () => listOwnReplicaIds(db, options.node),
    // Each write of the loop carries the epoch of its lease.
    reconcileDeployment: (
      term: LeaseTerm,
      id: string,
      observations: readonly Observation[],
      activity: Activity,
      policy: ControlPolicy,
    ) => reconcileDeployment(context, term, id, observations, activity, policy),
    wakeDeployment: (term: LeaseTerm, id: string, activity: Activity, policy: ControlPolicy) =>
      wakeDeployment(context, term, id, activity, policy),
    removeDeployment: (epoch: number, id: string) => removeDeployment(context, epoch, id),
    reconcileContainer: (term: LeaseTerm, id: string, observations: readonly Observation[], policy: ControlPolicy) =>
      reconcileContainer(context, term, id, observations, policy),
    readLaunch: (replicaId: string) => readLaunch(context, replicaId),
    readHomeSource: (versionId: string) => readHomeSource(context, versionId),
    saveLastLines: (epoch: number, versionId: string, lines: readonly string[]) =>
      saveLastLines(db, epoch, versionId, lines),
  };
}

export type DeploymentStore = ReturnType<typeof deploymentMethods>;
export type ControlStore = ReturnType<typeof controlMethods>;
