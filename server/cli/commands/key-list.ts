import { renderTable } from '../text-table';
import type { ApiKey } from '../../access/keys/api-key';

/** Returns a table of keys, or a hint if there are none. */
export function renderKeys(keys: readonly ApiKey[], nowMs: number): string {
  if (keys.length === 0) return 'No keys found. Create one with: capstan keys create --name NAME\n';
  const header = ['ID', 'NAME', 'KEY', 'TYPE', 'OWNER', 'DEPLOYMENTS', 'STATE', 'EXPIRES', 'LAST USED', 'LIMITS'];
  const rows = keys.map((key) => [
    key.id,
    key.name,
    key.display,
    key.type,
    `${key.owner.type}:${key.owner.name}`,
    deploymentsOf(key),
    key.state,
    formatUtc(key.expiresAt, 'never'),
    lastUseOf(key, nowMs),
    limitsOf(key),
  ]);
  return renderTable(header, rows);
}

/** Returns, for example, `"ci" (key_…, deployment-level, user:local): chat, search`. */
export function describeKey(key: ApiKey): string {
  return `"${key.name}" (${key.id}, ${key.type}, ${key.owner.type}:${key.owner.name}): ${deploymentsOf(key)}`;
}

function deploymentsOf({ type, deployments }: ApiKey): string {
  if (type === 'user-level') return 'all deployments of its owner';
  return deployments.length === 0 ? 'none' : deployments.map(({ name }) => name).join(', ');
}

function limitsOf({ limits: { rpm, tpm, parallel }, allowedCidrs, budget }: ApiKey): string {
  const parts: string[] = [];
  if (rpm !== null) parts.push(`${rpm} rpm`);
  if (tpm !== null) parts.push(`${tpm} tpm`);
  if (parallel !== null) parts.push(`${parallel} parallel`);
  if (budget !== null) {
    const period = budget.period === 'total' ? '' : `/${budget.period}`;
    parts.push(`${budget.used} of ${budget.tokens} tokens${period}`);
  }
  if (allowedCidrs !== null)
    parts.push(`from ${allowedCidrs.length > 3 ? `${allowedCidrs.length} networks` : allowedCidrs.join(' ')}`);
  return parts.length === 0 ? 'none' : parts.join(', ');
}

function lastUseOf({ lastUsedAt, lastUsedIp }: ApiKey, nowMs: number): string {
  if (lastUsedAt === null) return 'never';
  const when = formatPast(lastUsedAt, nowMs);
  return lastUsedIp === null ? when : `${when} from ${lastUsedIp}`;
}

/** Returns the age in minutes or hours, or the time if it is two days ago or more. */
export function formatPast(atMs: number, nowMs: number): string {
  const minutes = Math.max(0, Math.floor((nowMs - atMs) / 60_000));
  if (minutes < 1) return 'just now';
  if (minutes < 120) return `${minutes} min ago`;
  if (minutes < 2_880) return `${Math.floor(minutes / 60)} h ago`;
  return formatUtc(atMs, '');
}

function formatUtc(ms: number | null, fallback: string): string {
  return ms === null ? fallback : `${new Date(ms).toISOString().slice(0, 16).replace('T', ' ')}Z`;
}
