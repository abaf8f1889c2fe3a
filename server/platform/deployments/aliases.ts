import { checkText } from 'capstan/internal';
import { ServiceError } from '../store/errors';
import type { ServiceDb, ServiceTx } from '../store/schema';

const MAX_ALIAS_LENGTH = 100;

/** The names that requests may give as `model`. */
interface ModelNames {
  name: string;
  aliases: readonly string[];
}

/** Returns the trimmed aliases. @throws AccessError, ServiceError */
export function checkAliases(name: string, aliases: readonly string[]): string[] {
  const checked = aliases.map((alias) => checkText('aliases', alias, MAX_ALIAS_LENGTH));
  const names = [name, ...checked];
  const repeated = checked.find((alias, i) => names.indexOf(alias) !== i + 1);
  if (repeated !== undefined)
    throw new ServiceError(
      'conflict',
      `aliases: expected names that differ from each other and from the name of the deployment, got ${repeated} twice`,
    );
  return checked;
}

/** Returns the aliases of deployments by their ids. */
export async function aliasesOf(db: ServiceDb | ServiceTx, ids: readonly string[]): Promise<Map<string, string[]>> {
  const found = new Map<string, string[]>();
  if (ids.length === 0) return found;
  const rows = await db
    .selectFrom('deployment_aliases')
    .select(['deployment_id', 'alias'])
    .where('deployment_id', 'in', ids)
    .orderBy('position')
    .execute();
  for (const { deployment_id: id, alias } of rows) found.set(id, [...(found.get(id) ?? []), alias]);
  return found;
}

/** Replaces the aliases of a deployment. */
export async function writeAliases(
  tx: ServiceTx,
  ownerId: string,
  deploymentId: string,
  aliases: readonly string[],
): Promise<void> {
  await tx.deleteFrom('deployment_aliases').where('deployment_id', '=', deploymentId).execute();
  if (aliases.length === 0) return;
  await tx
    .insertInto('deployment_aliases')
    .values(aliases.map((alias, position) => ({ owner_id: ownerId, alias, deployment_id: deploymentId, position })))
    .execute();
}

/**
 * Checks that no other deployment of the owner has one of these names, and that no name is `NAME/…` of another one.
 * @throws ServiceError `conflict`
 */
export async function demandUnusedNames(
  tx: ServiceTx,
  ownerId: string,
  deploymentId: string,
  { name, aliases }: ModelNames,
): Promise<void> {
  const others = await otherNames(tx, ownerId, deploymentId);
  for (const [param, mine] of [['name', name], ...aliases.map((alias) => ['aliases', alias])]) {
    const taken = others.find(
      ({ text }) => text === mine || text.startsWith(`${mine}/`) || mine.startsWith(`${text}/`),
    );
    if (taken === undefined) continue;
    throw new ServiceError(
      'conflict',
      taken.text === mine
        ? `${param}: another deployment of the owner has the name ${mine}`
        : `${param}: ${mine} clashes with ${taken.text} of another deployment, because NAME/MODEL names a model of NAME`,
    );
  }
}

async function otherNames(tx: ServiceTx, ownerId: string, deploymentId: string): Promise<{ text: string }[]> {
  const names = await tx
    .selectFrom('deployments')
    .innerJoin('deployment_settings', 'deployment_id', 'id')
    .select('name as text')
    .where('owner_id', '=', ownerId)
    .where('id', '<>', deploymentId)
    .execute();
  const aliases = await tx
    .selectFrom('deployment_aliases')
    .select('alias as text')
    .where('owner_id', '=', ownerId)
    .where('deployment_id', '<>', deploymentId)
    .execute();
  return [...names, ...aliases];
}
