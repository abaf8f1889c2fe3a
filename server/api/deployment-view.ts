import type { OwnerRef } from '../access/owners';
import type { ContainerRecord } from '../service/containers';
import type { DeploymentRecord } from '../service/deployment-views';
import type { ApiContext } from './context';
import type { Page } from './json-schema';
import type { Container, Deployment } from './objects';
import { ApiProblem } from './problem';

/** With the address that this service gives it. */
export function deploymentView({ serving }: Pick<ApiContext, 'serving'>, record: DeploymentRecord): Deployment {
  const { id, name, slug, ...rest } = record;
  return { id, name, slug, url: urlOf(serving, slug), ...rest };
}

export function containerView({ serving }: Pick<ApiContext, 'serving'>, { slug, ...rest }: ContainerRecord): Container {
  return { ...rest, url: slug === null ? null : urlOf(serving, slug) };
}

function urlOf(serving: ApiContext['serving'], slug: string): string {
  return serving?.urlOf(slug) ?? `/d/${slug}`;
}

export function deploymentPage(
  context: Pick<ApiContext, 'serving'>,
  { data, next }: Page<DeploymentRecord>,
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

/** Of a version, in a path. @throws ApiProblem */
export function numberOf(text: string): number {
  if (!/^[1-9]\d{0,8}$/.test(text)) throw new ApiProblem('not_found', 'there is no such version');
  return Number(text);
}
