import type { ComponentType } from 'preact';
import type { Params } from '../router/match';
import { AccountPage } from '../pages/account/account';
import { AuditPage } from '../pages/audit';
import { ContainerDeployPage } from '../pages/containers/deploy';
import { ContainerEditPage } from '../pages/containers/edit';
import { ContainerListPage } from '../pages/containers/list';
import { ContainerNewPage } from '../pages/containers/new';
import { ContainerPage } from '../pages/containers/container';
import { DataPage } from '../pages/data';
import { DeploymentListPage } from '../pages/deployments/list';
import { DeploymentNewPage } from '../pages/deployments/new';
import { DeploymentPage } from '../pages/deployments/deployment';
import { VersionLogsPage } from '../pages/deployments/version-logs';
import { VersionNewPage } from '../pages/deployments/version-new';
import { VersionPage } from '../pages/deployments/version';
import { InvitationPage } from '../pages/invitation';
import { OrgListPage } from '../pages/orgs/list';
import { OrgPage } from '../pages/orgs/org';
import { SetupPage } from '../pages/setup';

export interface PageRoute {
  path: string;
  page: ComponentType<Params>;
  /** Addresses with the same key are one page that stays as it is between them. */
  key?: (params: Params) => string;
}

const page = <P>(component: ComponentType<P>) => component as unknown as ComponentType<Params>;

/** For whoever comes, signed in or not. */
export const OPEN_ROUTES: readonly PageRoute[] = [
  { path: '/bootstrap', page: page(SetupPage) },
  { path: '/setup', page: page(SetupPage) },
  { path: '/invitation', page: page(InvitationPage) },
];

const deployment = ({ id }: Params) => `deployment ${id}`;
const org = ({ id }: Params) => `org ${id}`;

export const ROUTES: readonly PageRoute[] = [
  { path: '/deployments', page: page(DeploymentListPage) },
  { path: '/deployments/new', page: page(DeploymentNewPage) },
  { path: '/deployments/:id', page: page(DeploymentPage), key: deployment },
  { path: '/deployments/:id/versions/new', page: page(VersionNewPage) },
  { path: '/deployments/:id/versions/:number', page: page(VersionPage), key: ({ id, number }) => `version ${id} ${number}` },
  { path: '/deployments/:id/versions/:number/logs', page: page(VersionLogsPage), key: ({ id, number }) => `logs ${id} ${number}` },
  { path: '/deployments/:id/:tab', page: page(DeploymentPage), key: deployment },
  { path: '/containers', page: page(ContainerListPage) },
  { path: '/containers/new', page: page(ContainerNewPage) },
  { path: '/containers/:id', page: page(ContainerPage), key: ({ id }) => `container ${id}` },
  { path: '/containers/:id/edit', page: page(ContainerEditPage), key: ({ id }) => `container ${id} edit` },
  { path: '/containers/:id/deploy', page: page(ContainerDeployPage), key: ({ id }) => `container ${id} deploy` },
  { path: '/data', page: page(DataPage) },
  { path: '/orgs', page: page(OrgListPage) },
  { path: '/orgs/:id', page: page(OrgPage), key: org },
  { path: '/orgs/:id/:tab', page: page(OrgPage), key: org },
  { path: '/audit', page: page(AuditPage) },
  { path: '/account', page: page(AccountPage), key: () => 'account' },
  { path: '/account/:tab', page: page(AccountPage), key: () => 'account' },
];
