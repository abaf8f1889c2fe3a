import { renderTable } from '../text-table';
import type { ApiKey } from './api-key';

/** The keys as a table for people; without a line at its end when there is none. */
export function renderKeys(keys: readonly ApiKey[], nowMs: number): string {
  if (keys.length === 0) return 'No keys yet: capstan keys create --name NAME makes one.\n';
  const header = ['ID', 'NAME', 'KEY', 'TYPE', 'OWNER', 'REACHES', 'STATE', 'EXPIRES', 'LAST USED', 'LIMITS'];
  const rows = keys.map((key) => [
    key.id,
    key.name,
    key.display,
    key.type,
    `${key.owner.type}:${key.owner.name}`,
    reaches(key),
    key.state,
    day(key.expiresAt, 'never'),
    lastUse(key, nowMs),
    limits(key),
  ]);
  return renderTable(header, rows);
}

/** `"ci" (key_…, deployment-level, user:local): chat, search`. */
export function describeInLine(key: ApiKey): string {
  return `"${key.name}" (${key.id}, ${key.type}, ${key.owner.type}:${key.owner.name}): ${reaches(key)}`;
}

function reaches({ type, deployments }: ApiKey): string {
  if (type === 'user-level') return 'all of its owner';
  return deployments.length === 0 ? 'nothing' : deployments.map(({ name }) => name).join(', ');
}

function limits({ limits: { rpm, tpm, parallel }, allowedCidrs, budget }: ApiKey): string {
  const parts = [
    rpm === null ? '' : `${rpm} rpm`,
    tpm === null ? '' : `${tpm} tpm`,
    parallel === null ? '' : `${parallel} parallel`,
    budget === null
      ? ''
      : `${budget.used} of ${budget.tokens} tokens${budget.period === 'total' ? '' : `/${budget.period}`}`,
    allowedCidrs === null
      ? ''
      : `from ${allowedCidrs.length > 3 ? `${allowedCidrs.length} networks` : allowedCidrs.join(' ')}`,
  ].filter((part) => part !== '');
  return parts.length === 0 ? 'none' : parts.join(', ');
}

function lastUse({ lastUsedAt, lastUsedIp }: ApiKey, nowMs: number): string {
  if (lastUsedAt === null) return 'never';
  const minutes = Math.max(0, Math.floor((nowMs - lastUsedAt) / 60_000));
  const ago =
    minutes < 1
      ? 'just now'
      : minutes < 120
        ? `${minutes} min ago`
        : minutes < 2_880
          ? `${Math.floor(minutes / 60)} h ago`
          : day(lastUsedAt, '');
  return lastUsedIp === null ? ago : `${ago} from ${lastUsedIp}`;
}

function day(ms: number | null, fallback: string): string {
  return ms === null ? fallback : `${new Date(ms).toISOString().slice(0, 16).replace('T', ' ')}Z`;
}
