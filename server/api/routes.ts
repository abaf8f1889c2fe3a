import { openApiRoute } from './openapi';
import type { ApiRoute } from './route';

/** Every resource of the management interface, by its module. */
export function apiRoutes(): readonly ApiRoute[] {
  const routes: ApiRoute[] = [openApiRoute(() => routes)];
  return routes;
}
