import type { ComponentType } from 'preact';
import type { Params } from '../router/match';
import type * as rarePages from './rare-pages';
import { lazy } from './lazy';
import { DeploymentListPage } from '../pages/deployments/list';
import { DeploymentPage } from '../pages/deployments/deployment';
import { VersionLogsPage } from '../pages/deployments/version-logs';
import { VersionPage } from '../pages/deployments/version';

export interface PageRoute {
  path: string;
  page: ComponentType<Params>;
  /** Paths with the same key share one page instance, which keeps its state between them. */
  key?: (params: Params) => string;
}

const page = (component: ComponentType<never>) => component as unknown as ComponentType<Params>;
// The pages of deployments are used most, so they are part of the initial chunk, apart from forms.
const rare = (name: keyof typeof rarePages) => lazy(async () => page((await import('./rare-pages'))[name]));

// Each is created once, so that all its paths share one page instance.
const setupPage = rare('SetupPage');
const orgPage = rare('OrgPage');
const accountPage = rare('AccountPage');
const callbackPage = rare('SignInCallbackPage');

/** Routes that need no session. */
export const OPEN_ROUTES: readonly PageRoute[] = [
  { path: '/bootstrap', page: setupPage },
  { path: '/setup', page: setupPage },
  { path: '/invitation', page: rare('InvitationPage') },
  { path: '/reset', page: rare('ResetPage') },
  { path: '/sign-in/callback', page: callbackPage },
  { path: '/sign-in/callback/:provider', page: callbackPage },
];

const deployment = ({ id }: Params) => `deployment ${id}`;
const org = ({ id }: Params) => `org ${id}`;

export const ROUTES: readonly PageRoute[] = [
  { path: '/deployments', page: page(DeploymentListPage) },
  { path: '/deployments/new', page: rare('DeploymentNewPage') },
  { path: '/deployments/:id', page: page(DeploymentPage), key: deployment },
  { path: '/deployments/:id/versions/new', page: rare('VersionNewPage') },
  {
    path: '/deployments/:id/versions/:number',
    page: page(VersionPage),
    key: ({ id, number }) => `version ${id} ${number}`,
  },
  {
    path: '/deployments/:id/versions/:number/logs',
    page: page(VersionLogsPage),
    key: ({ id, number }) => `logs ${id} ${number}`,
  },
  { path: '/deployments/:id/:tab', page: page(DeploymentPage), key: deployment },
  { path: '/containers', page: rare('ContainerListPage') },
  { path: '/containers/new', page: rare('ContainerNewPage') },
  { path: '/containers/:id', page: rare('ContainerPage'), key: ({ id }) => `container ${id}` },
  { path: '/containers/:id/edit', page: rare('ContainerEditPage'), key: ({ id }) => `container ${id} edit` },
  { path: '/containers/:id/deploy', page: rare('ContainerDeployPage'), key: ({ id }) => `container ${id} deploy` },
  { path: '/data', page: rare('DataPage') },
  { path: '/orgs', page: rare('OrgListPage') },
  { path: '/orgs/:id', page: orgPage, key: org },
  { path: '/orgs/:id/:tab', page: orgPage, key: org },
  { path: '/webhooks', page: rare('WebhooksPage') },
  { path: '/costs', page: rare('CostsPage') },
  { path: '/quotas', page: rare('QuotasPage') },
  { path: '/identity-providers', page: rare('IdentityProvidersPage') },
  { path: '/audit', page: rare('AuditPage') },
  { path: '/account', page: accountPage, key: () => 'account' },
  { path: '/account/:tab', page: accountPage, key: () => 'account' },
];
