import * as audit from './routes/audit';
import * as auth from './routes/auth';
import * as canary from './routes/canary';
import * as containers from './routes/containers';
import * as dataPulls from './routes/data-pulls';
import * as dataSources from './routes/data-sources';
import * as deployments from './routes/deployments';
import * as events from './routes/events';
import * as identityProviders from './routes/identity-providers';
import * as images from './routes/images';
import * as invitations from './routes/invitations';
import * as keyInspection from './routes/key-inspection';
import * as keys from './routes/keys';
import * as logs from './routes/logs';
import * as me from './routes/me';
import * as members from './routes/members';
import * as metrics from './routes/metrics';
import { openApiRoute } from './routes/openapi';
import * as money from './routes/money';
import * as orgs from './routes/orgs';
import * as providerSignIn from './routes/provider-sign-in';
import * as propagation from './routes/propagation';
import * as quotas from './routes/quotas';
import type { ApiRoute } from './route';
import * as sessions from './routes/sessions';
import * as snippets from './routes/snippets';
import * as testTool from './routes/test-tool';
import * as tokens from './routes/tokens';
import * as upstreamVersions from './routes/upstream-versions';
import * as users from './routes/users';
import * as versions from './routes/versions';
import * as webhooks from './routes/webhooks';

const RESOURCES: readonly { readonly ROUTES: readonly ApiRoute[] }[] = [
  auth,
  providerSignIn,
  me,
  sessions,
  tokens,
  orgs,
  members,
  invitations,
  users,
  quotas,
  identityProviders,
  keys,
  keyInspection,
  propagation,
  audit,
  images,
  dataSources,
  dataPulls,
  containers,
  deployments,
  versions,
  canary,
  upstreamVersions,
  events,
  logs,
  metrics,
  testTool,
  snippets,
  webhooks,
  money,
];

/** Returns all routes of the management API. */
export function apiRoutes(): readonly ApiRoute[] {
  const routes: ApiRoute[] = RESOURCES.flatMap((resource) => resource.ROUTES);
  routes.push(openApiRoute(() => routes));
  return routes;
}
