import type { Client } from '../api/client';
import type { Container, DataSource, Deployment, Image, OwnerReference } from '../api/objects';
import { UsageError } from '../flag-values';

interface Named {
  id: string;
  name: string;
}

/** By id, by the slug of its URL, or by its name. @throws UsageError */
export async function findDeployment(client: Client, reference: string): Promise<Deployment> {
  if (reference.startsWith('dep_')) return client.deployments.get(reference);
  const found = await client.deployments.list();
  return found.find(({ slug }) => slug === reference) ?? only('deployment', reference, found, describeOwner);
}

export async function findContainer(client: Client, reference: string): Promise<Container> {
  if (reference.startsWith('con_')) return client.containers.get(reference);
  return only('container', reference, await client.containers.list(), describeOwner);
}

export async function findDataSource(client: Client, reference: string): Promise<DataSource> {
  return only('data source', reference, await client.dataSources.list(), describeOwner);
}

/** By id, by `name:version`, or by a name that one image has. */
export async function findImage(client: Client, reference: string): Promise<Image> {
  const [name, version] = reference.split(':', 2);
  const found = (await client.images.list()).filter(
    (image) => image.id === reference || version === undefined || image.version === version,
  );
  return only(
    'image',
    found.some(({ id }) => id === reference) ? reference : name,
    found,
    (image) => `${image.name}:${image.version}`,
  );
}

/** `org:SLUG`, or `user` for oneself (undefined: the service takes the caller). @throws UsageError */
export async function findOwner(client: Client, text: string | undefined): Promise<OwnerReference | undefined> {
  if (text === undefined || text === 'user' || text === 'me') return undefined;
  const [, slug] = /^org:(.+)$/.exec(text) ?? [];
  if (slug === undefined) throw new UsageError(`--owner: expected org:SLUG, or user for yourself, got '${text}'`);
  const organizations = await client.all<{ id: string; slug: string }>('/orgs', {});
  const found = organizations.find(({ id, slug: candidate }) => candidate === slug || id === slug);
  if (found === undefined)
    throw new UsageError(
      `--owner: you are in no organization ${slug}${organizations.length === 0 ? '' : `: expected ${organizations.map((org) => org.slug).join(', ')}`}`,
    );
  return { type: 'org', id: found.id };
}

function only<T extends Named>(
  kind: string,
  reference: string,
  candidates: readonly T[],
  describe: (item: T) => string,
): T {
  const found = candidates.filter(({ id, name }) => id === reference || name === reference);
  if (found.length === 1) return found[0];
  if (found.length > 1)
    throw new UsageError(
      `several ${kind}s are called ${reference}: give the id of one: ${found.map((item) => `${item.id} (${describe(item)})`).join(', ')}`,
    );
  const names = candidates.slice(0, 10).map(({ name }) => name);
  throw Object.assign(
    new Error(
      `there is no ${kind} ${reference}${names.length === 0 ? '' : `: there are ${names.join(', ')}${candidates.length > names.length ? ' and others' : ''}`}`,
    ),
    { code: 'not_found' },
  );
}

function describeOwner({ owner }: { owner: { type: string; name: string } }): string {
  return `${owner.type}:${owner.name}`;
}
