import * as audit from './audit';
import * as auth from './auth';
import * as containers from './containers';
import * as dataSources from './data-sources';
import * as deployments from './deployments';
import * as events from './events';
import * as images from './images';
import * as invitations from './invitations';
import * as keyInspection from './key-inspection';
import * as keys from './keys';
import * as logs from './logs';
import * as me from './me';
import * as members from './members';
import * as metrics from './metrics';
import { openApiRoute } from './openapi';
import * as orgs from './orgs';
import * as propagation from './propagation';
import * as quotas from './quotas';
import type { ApiRoute } from './route';
import * as sessions from './sessions';
import * as snippets from './snippets';
import * as testTool from './test-tool';
import * as tokens from './tokens';
import * as users from './users';
import * as versions from './versions';
import * as webhooks from './webhooks';

const RESOURCES: readonly { readonly ROUTES: readonly ApiRoute[] }[] = [
  auth,
  me,
  sessions,
  tokens,
  orgs,
  members,
  invitations,
  users,
  quotas,
  keys,
  keyInspection,
  propagation,
  audit,
  images,
  dataSources,
  containers,
  deployments,
  versions,
  events,
  logs,
  metrics,
  testTool,
  snippets,
  webhooks,
];

/** Every route of the management interface, by its modules. */
export function apiRoutes(): readonly ApiRoute[] {
  const routes: ApiRoute[] = RESOURCES.flatMap((resource) => resource.ROUTES);
  routes.push(openApiRoute(() => routes));
  return routes;
}
