import { UsageError } from 'capstan/internal/cli';
import type { Client } from '../api/client';
import type { Container, DataSource, Deployment, Image, Me, OwnerReference } from '../api/objects';

interface Named {
  id: string;
  name: string;
}

/** Finds a deployment by ID, by the slug of its URL, or by name. @throws UsageError if several have the name. */
export async function findDeployment(client: Client, reference: string): Promise<Deployment> {
  if (reference.startsWith('dep_')) return client.deployments.get(reference);
  const found = await client.deployments.list();
  return found.find(({ slug }) => slug === reference) ?? findOnly('deployment', reference, found, describeOwner);
}

export async function findContainer(client: Client, reference: string): Promise<Container> {
  if (reference.startsWith('con_')) return client.containers.get(reference);
  return findOnly('container', reference, await client.containers.list(), describeOwner);
}

export async function findDataSource(client: Client, reference: string, advice?: string): Promise<DataSource> {
  return findOnly('data source', reference, await client.dataSources.list(), describeOwner, advice);
}

/** Finds an image by ID, by `name:version`, or by a name that only one image has. */
export async function findImage(client: Client, reference: string): Promise<Image> {
  const [name, version] = reference.split(':', 2);
  const found = (await client.images.list()).filter(
    (image) => image.id === reference || version === undefined || image.version === version,
  );
  return findOnly(
    'image',
    found.some(({ id }) => id === reference) ? reference : name,
    found,
    (image) => `${image.name}:${image.version}`,
  );
}

/**
 * Finds the owner `org:SLUG`. Returns undefined for the caller's own account (`user`, `me` or no value).
 * @throws UsageError
 */
export async function findOwner(client: Client, text: string | undefined): Promise<OwnerReference | undefined> {
  if (text === undefined || text === 'user' || text === 'me') return undefined;
  const [, slug] = /^org:(.+)$/.exec(text) ?? [];
  if (slug === undefined) throw new UsageError(`--owner: expected org:SLUG, or user for yourself, got '${text}'`);
  const organizations = await client.all<{ id: string; slug: string }>('/orgs', {});
  const found = organizations.find(({ id, slug: candidate }) => candidate === slug || id === slug);
  if (found === undefined)
    throw new UsageError(
      `--owner: you are not in an organization called ${slug}${organizations.length === 0 ? '' : `: expected ${organizations.map((org) => org.slug).join(', ')}`}`,
    );
  return { type: 'org', id: found.id };
}

/** As {@link findOwner}, with the caller's own account by its ID, for filters: no owner means every owner there. */
export async function findOwnerOrSelf(client: Client, text: string): Promise<OwnerReference> {
  return (await findOwner(client, text)) ?? { type: 'user', id: (await client.request<Me>('GET', '/me')).id };
}

function findOnly<T extends Named>(
  kind: string,
  reference: string,
  candidates: readonly T[],
  describe: (item: T) => string,
  advice?: string,
): T {
  const found = candidates.filter(({ id, name }) => id === reference || name === reference);
  if (found.length === 1) return found[0];
  if (found.length > 1)
    throw new UsageError(
      `several ${kind}s are called ${reference}. Use an ID: ${found.map((item) => `${item.id} (${describe(item)})`).join(', ')}`,
    );
  const names = candidates.slice(0, 10).map(({ name }) => name);
  const known = names.length === 0 ? '' : `. Found ${names.join(', ')}${candidates.length > 10 ? ' and others' : ''}`;
  const hint = advice === undefined ? '' : `. ${advice}`;
  throw Object.assign(new Error(`no ${kind} is called ${reference}${known}${hint}`), { code: 'not_found' });
}

function describeOwner({ owner }: { owner: { type: string; name: string } }): string {
  return `${owner.type}:${owner.name}`;
}
