import type {
  Capacity,
  ContainerEdit,
  DataSourceEdit,
  DeploymentEdit,
  NewContainer,
  NewDeployment,
  NewVersion,
} from '../api/objects';
import type { OwnerRef } from '../access/owners';
import { demandOwner, type ServiceActor, visibleOwners } from './actor';
import { createImage, deleteImage, listImages, type NewImageSpec } from './catalog';
import { advanceContainer, listBusyContainerIds } from './container-control';
import {
  commandContainer,
  createContainer,
  deleteContainer,
  deployContainer,
  editContainer,
  getContainer,
  pageContainers,
  previewDeploy,
} from './containers';
import { advanceDeployment, listDeploymentIds, saveLastLines, wakeDeployment } from './control';
import {
  deleteDeployment,
  demandDeployment,
  editDeployment,
  removeDeployment,
  switchAccessControl,
  wishDeployment,
} from './deployment-commands';
import {
  createDataSource,
  deleteDataSource,
  editDataSource,
  findUnmeasured,
  getDataSource,
  listDataSources,
  type NewDataSourceSpec,
  saveMeasure,
  wishMeasure,
} from './data-sources';
import type { DeploymentState } from './deployment-state';
import {
  pageDeployments,
  pageTargetEvents,
  pageVersions,
  readDeployment,
  readTargetEvents,
  readVersion,
} from './deployment-views';
import { createDeployment } from './deployments';
import type { FolderMeasure } from './measure-folder';
import { readHomeSource, readLaunch } from './launch';
import { readCapacity } from './capacity';
import type { StoreContext } from './store-context';
import { activateVersion, createVersion, deleteVersion } from './versions';
import type { Wish } from './wishes';
import type { Activity, ControlPolicy, Observation } from './work';

/** Images, data, containers, deployments and versions, for people: every method looks at who asks. */
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
    /** Says what is wanted; whoever measures is told apart. */
    wishMeasure: (actor: ServiceActor, id: string, wish: 'pending' | 'cancelled') => wishMeasure(db, actor, id, wish),
    findUnmeasured: () => findUnmeasured(db),
    saveMeasure: (source: { id: string; locator: string }, outcome: FolderMeasure | { error: string }) =>
      saveMeasure(db, source, outcome, now()),
    deleteDataSource: (actor: ServiceActor, id: string) => deleteDataSource(db, actor, id, now()),
    readCapacity: (actor: ServiceActor): Promise<Capacity> => readCapacity(db, options.machine, actor),

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
    wishDeployment: (actor: ServiceActor, id: string, wish: Wish) => wishDeployment(context, actor, id, wish),
    switchAccessControl: (actor: ServiceActor, id: string, isOn: boolean, ifRev?: number) =>
      switchAccessControl(context, actor, id, isOn, ifRev),
    /** What runs of it ends by and by. */
    discardDeployment: (actor: ServiceActor, id: string, ifRev?: number) => deleteDeployment(context, actor, id, ifRev),

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

/** For the controller, which asks in nobody's name. */
export function controlMethods(context: StoreContext) {
  const { db } = context;
  return {
    listDeploymentIds: () => listDeploymentIds(db),
    listBusyContainerIds: () => listBusyContainerIds(db),
    advanceDeployment: (id: string, observations: readonly Observation[], activity: Activity, policy: ControlPolicy) =>
      advanceDeployment(context, id, observations, activity, policy),
    wakeDeployment: (id: string, activity: Activity, policy: ControlPolicy) =>
      wakeDeployment(context, id, activity, policy),
    removeDeployment: (id: string) => removeDeployment(context, id),
    advanceContainer: (id: string, observations: readonly Observation[]) => advanceContainer(context, id, observations),
    readLaunch: (replicaId: string) => readLaunch(context, replicaId),
    readHomeSource: (versionId: string) => readHomeSource(context, versionId),
    saveLastLines: (versionId: string, lines: readonly string[]) => saveLastLines(db, versionId, lines),
  };
}

export type DeploymentStore = ReturnType<typeof deploymentMethods>;
export type ControlStore = ReturnType<typeof controlMethods>;
