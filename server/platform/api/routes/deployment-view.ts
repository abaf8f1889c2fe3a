import type { OwnerRef } from 'capstan/internal';
import type { ContainerView } from '../../deployments/containers';
import type { DeploymentView } from '../../deployments/views';
import type { ApiContext } from '../context';
import type { Page } from '../json-schema';
import type { Container, Deployment } from '../objects';
import { ApiProblem } from '../problem';

/** Adds the URL of the deployment. */
export function deploymentView({ serving }: Pick<ApiContext, 'serving'>, record: DeploymentView): Deployment {
  const { id, name, slug, ...rest } = record;
  return { id, name, slug, url: urlOf(serving, slug), api_url: serving?.apiUrl ?? '', ...rest };
}

export function containerView({ serving }: Pick<ApiContext, 'serving'>, { slug, ...rest }: ContainerView): Container {
  return { ...rest, url: slug === null ? null : urlOf(serving, slug) };
}

function urlOf(serving: ApiContext['serving'], slug: string): string {
  return serving?.urlOf(slug) ?? `/d/${slug}`;
}

export function deploymentPage(
  context: Pick<ApiContext, 'serving'>,
  { data, next }: Page<DeploymentView>,
): Page<Deployment> {
  return { data: data.map((record) => deploymentView(context, record)), next };
}

export const OWNER_QUERY = {
  type: 'string',
  pattern: '^(user|org):[0-9a-z_]{1,64}$',
  description: 'user:ID or org:ID',
} as const;

export function ownerOf(text: string | undefined): OwnerRef | undefined {
  const [type, id] = text?.split(':') ?? [];
  return id === undefined ? undefined : { type: type as OwnerRef['type'], id };
}

/** Parses the version number of a path. Throws ApiProblem `not_found`. */
export function numberOf(text: string): number {
  if (!/^[1-9]\d{0,8}$/.test(text)) throw new ApiProblem('not_found', 'this version does not exist');
  return Number(text);
}
