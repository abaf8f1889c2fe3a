import type { OwnerQuota } from '../../api/objects';
import type { MessageKey } from '../i18n/en';
import { formatCores, formatMegabytes, formatNumber } from './numbers';

type Kind = 'deployments' | 'versions' | 'gpu' | 'cpu_millis' | 'memory_mb' | 'disk_mb';
export type Quotas = Pick<OwnerQuota, `quota_${Kind}`>;

/** One quota: its column, its field in the form, and how a value is shown. */
export interface QuotaKind {
  kind: Kind;
  /** Title of the column. */
  title: MessageKey;
  /** Label of the limit. */
  limit: MessageKey;
  format: (value: number, locale: string) => string;
  /** Unit of the form. */
  unit?: string;
  /** Units of the stored value in one unit of the form: 1,000 millis are one core. */
  scale: number;
}

/** In the order of the table and the form. */
export const QUOTA_KINDS: readonly QuotaKind[] = [
  { kind: 'deployments', title: 'nav.deployments', limit: 'orgs.quotaDeployments', format: formatNumber, scale: 1 },
  { kind: 'versions', title: 'deployment.versions', limit: 'orgs.quotaVersions', format: formatNumber, scale: 1 },
  { kind: 'gpu', title: 'spec.gpus', limit: 'orgs.quotaGpu', format: formatNumber, scale: 1 },
  { kind: 'cpu_millis', title: 'metrics.cpu', limit: 'orgs.quotaCpu', format: formatCores, scale: 1_000 },
  {
    kind: 'memory_mb',
    title: 'metrics.memory',
    limit: 'orgs.quotaMemory',
    format: formatMegabytes,
    unit: 'MB',
    scale: 1,
  },
  { kind: 'disk_mb', title: 'quotas.disk', limit: 'orgs.quotaDisk', format: formatMegabytes, unit: 'MB', scale: 1 },
];

/** Returns the limit for readers, or undefined without one. */
export function quotaLimit({ kind, format }: QuotaKind, quotas: Quotas, locale: string): string | undefined {
  const quota = quotas[`quota_${kind}`];
  return quota === null ? undefined : format(quota, locale);
}

/** Returns the text of the form. It is empty without a limit. */
export function quotaText({ kind, scale }: QuotaKind, quotas: Quotas): string {
  const quota = quotas[`quota_${kind}`];
  return quota === null ? '' : String(quota / scale);
}

/** Reads the text of the form. Returns undefined for a wrong value. */
export function parseQuota({ scale }: QuotaKind, text: string): number | null | undefined {
  if (text.trim() === '') return null;
  const value = /^\d{1,9}(\.\d{1,3})?$/.test(text.trim()) ? Number(text) * scale : NaN;
  return Number.isInteger(value) && value <= 1_000_000_000 ? value : undefined;
}
