/** Whether the service has every acknowledged change at the end, and no refused one. */
import type { Random } from '../../server/bench/random';
import type { BrokenWorkloads } from './broken-workloads';
import type { Served } from './chats';
import { type KeyState, type KeyWriter, tryKey, type WrittenKey } from './key-writer';
import type { Ledger } from './ledger';
import type { Management } from './management';
import type { VersionWriter } from './version-writer';

const counted = (names: readonly string[]): Map<string, number> => {
  const counts = new Map<string, number>();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return counts;
};

export async function checkVersions(
  api: Management,
  ledger: Ledger,
  writer: Pick<VersionWriter, 'written'>,
): Promise<void> {
  for (const id of new Set(writer.written.map(({ deploymentId }) => deploymentId))) {
    const notes = counted((await api.list(`/deployments/${id}/versions`)).map(({ note }) => note as string));
    for (const { note, outcome } of writer.written.filter(({ deploymentId }) => deploymentId === id)) {
      const count = notes.get(note) ?? 0;
      ledger.count('acknowledged changes checked', outcome === 'acknowledged' ? 1 : 0);
      if (outcome === 'acknowledged' && count !== 1) ledger.problem(`${note}: acknowledged, but there are ${count}`);
      if (outcome === 'refused' && count !== 0) ledger.problem(`${note}: refused, but there are ${count}`);
    }
  }
}

export async function checkBroken(
  api: Management,
  ledger: Ledger,
  { written }: Pick<BrokenWorkloads, 'written'>,
): Promise<void> {
  const names = counted((await api.list('/deployments')).map(({ name }) => name as string));
  for (const [name, { isCreated, isDeleted }] of written) {
    const count = names.get(name) ?? 0;
    ledger.count('acknowledged changes checked', isCreated ? 1 : 0);
    if (isDeleted && count !== 0) ledger.problem(`${name}: deleted, but it is still there`);
    if (isCreated && !isDeleted && count !== 1) ledger.problem(`${name}: created, but there are ${count}`);
  }
}

export async function checkKeys(
  api: Management,
  ledger: Ledger,
  served: Served,
  writer: Pick<KeyWriter, 'keys' | 'created' | 'refusedNames'>,
  random: Random,
): Promise<void> {
  const rows = await api.list('/keys?include_deleted=true');
  const names = counted(rows.map(({ name }) => name as string));
  // A later change of the name is allowed, so names of creations are only bounded.
  for (const [name] of writer.created)
    if ((names.get(name) ?? 0) > 1) ledger.problem(`key '${name}': repeated with one Idempotency-Key, made twice`);
  for (const name of writer.refusedNames)
    if (names.has(name)) ledger.problem(`key '${name}': the change was refused, but it took effect`);
  for (const key of writer.keys) {
    const row = rows.find(({ id }) => id === key.id);
    ledger.count('acknowledged changes checked');
    if (row === undefined) ledger.problem(`key ${key.id}: acknowledged, but it does not exist`);
    else if (!isIn(row, key.state) && (key.maybe === undefined || !isIn(row, key.maybe)))
      ledger.problem(`key ${key.id}: expected ${describe(key)}, got ${row.state} '${row.name}'`);
    await checkSecrets(ledger, served, key, random);
  }
}

function isIn({ name, state }: { name: string; state: string }, expected: KeyState): boolean {
  return name === expected.name && state === expected.state;
}

function describe({ state, maybe }: WrittenKey): string {
  const text = ({ name, state: kind }: KeyState): string => `${kind} '${name}'`;
  return maybe === undefined ? text(state) : `${text(state)} or ${text(maybe)}`;
}

async function checkSecrets(ledger: Ledger, { url }: Served, key: WrittenKey, random: Random): Promise<void> {
  for (const secret of key.revoked) {
    const { status } = await tryKey(url, secret, random);
    if (status !== 401) ledger.problem(`key ${key.id}: a revoked secret got ${status} at the end`);
  }
  const { state, secret } = key.state;
  if (secret === undefined || key.maybe !== undefined || state === 'deleted') return;
  const { status } = await tryKey(url, secret, random);
  const expected = state === 'active' ? 200 : 401;
  if (status !== expected) ledger.problem(`key ${key.id} (${state}): expected ${expected} at the end, got ${status}`);
}
