import type { Key, KeyEdit, NewKey } from '../../api/objects';
import { fromLocalInput, toLocalInput } from '../format/times';

/** A key while it is edited. */
export interface KeyDraft {
  name: string;
  type: Key['type'];
  deployments: string[];
  /** The value of a `datetime-local` input. Empty means never. */
  expires: string;
  rpm: string;
  tpm: string;
  parallel: string;
  /** Networks, separated by commas or white space. Empty means all networks. */
  cidrs: string;
  budgetTokens: string;
  budgetPeriod: 'day' | 'week' | 'month' | 'total';
}

export const EMPTY_KEY: KeyDraft = {
  name: '',
  type: 'user-level',
  deployments: [],
  expires: '',
  rpm: '',
  tpm: '',
  parallel: '',
  cidrs: '',
  budgetTokens: '',
  budgetPeriod: 'month',
};

export function draftOfKey(key: Key): KeyDraft {
  const text = (value: number | null) => (value === null ? '' : String(value));
  return {
    name: key.name,
    type: key.type,
    deployments: key.deployments.map(({ id }) => id),
    expires: toLocalInput(key.expires_at),
    rpm: text(key.limits.rpm),
    tpm: text(key.limits.tpm),
    parallel: text(key.limits.parallel),
    cidrs: (key.allowed_cidrs ?? []).join('\n'),
    budgetTokens: text(key.budget?.tokens ?? null),
    budgetPeriod: key.budget?.period ?? 'month',
  };
}

export type KeyProblem = 'spec.error.required' | 'keys.error.binding' | 'keys.error.limit' | 'keys.error.past';

export function keyProblems(draft: KeyDraft, nowMs: number): Partial<Record<keyof KeyDraft, KeyProblem>> {
  const problems: Partial<Record<keyof KeyDraft, KeyProblem>> = {};
  if (draft.name.trim() === '') problems.name = 'spec.error.required';
  if (draft.type === 'deployment-level' && draft.deployments.length === 0) problems.deployments = 'keys.error.binding';
  for (const field of ['rpm', 'tpm', 'parallel', 'budgetTokens'] as const) {
    if (draft[field] !== '' && !/^[1-9]\d{0,14}$/.test(draft[field])) problems[field] = 'keys.error.limit';
  }
  const expiresAt = fromLocalInput(draft.expires);
  if (expiresAt !== null && Date.parse(expiresAt) <= nowMs) problems.expires = 'keys.error.past';
  return problems;
}

export function toKeyRequest(draft: KeyDraft): NewKey {
  const number = (value: string) => (value === '' ? null : Number(value));
  const cidrs = draft.cidrs.split(/[\s,]+/).filter((part) => part !== '');
  return {
    name: draft.name.trim(),
    type: draft.type,
    deployments: draft.type === 'deployment-level' ? draft.deployments : [],
    expires_at: fromLocalInput(draft.expires),
    limits: { rpm: number(draft.rpm), tpm: number(draft.tpm), parallel: number(draft.parallel) },
    allowed_cidrs: cidrs.length === 0 ? null : cidrs,
    budget: draft.budgetTokens === '' ? null : { tokens: Number(draft.budgetTokens), period: draft.budgetPeriod },
  };
}

export function toKeyEdit(draft: KeyDraft, from: KeyDraft): KeyEdit {
  const before = toKeyRequest(from);
  const changed = Object.entries(toKeyRequest(draft)).filter(
    ([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name as keyof NewKey]),
  );
  const edit: { -readonly [K in keyof KeyEdit]: KeyEdit[K] } = Object.fromEntries(changed);
  // A change to deployment-level must send the bindings. A change to user-level removes them on the service.
  if (edit.type === 'deployment-level') edit.deployments = draft.deployments;
  if (draft.type === 'user-level') delete edit.deployments;
  return edit;
}
