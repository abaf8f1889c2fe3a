/** What an owner may have or use. Null means no limit. */
type QuotaName = 'deployments' | 'versions' | 'gpu' | 'cpu_millis' | 'memory_mb' | 'disk_mb';
export type Quotas = Record<`quota_${QuotaName}`, number | null>;
export type QuotaUse = Record<`used_${QuotaName}`, number>;

export const NO_QUOTAS: Quotas = {
  quota_deployments: null,
  quota_versions: null,
  quota_gpu: null,
  quota_cpu_millis: null,
  quota_memory_mb: null,
  quota_disk_mb: null,
};

export const QUOTA_COLUMNS = Object.keys(NO_QUOTAS) as (keyof Quotas)[];

/** Returns the quotas of a row alone. */
export function quotasOf(row: Quotas): Quotas {
  return Object.fromEntries(QUOTA_COLUMNS.map((column) => [column, row[column]])) as Quotas;
}
