import { formatAmount } from './amounts';
import { dayText } from './periods';
import type { SpendEntry } from './spend-report';

const HEADER = [
  ...['day', 'owner_type', 'owner_id', 'owner', 'key_id', 'key', 'model', 'requests'],
  ...['prompt_tokens', 'cached_tokens', 'completion_tokens', 'cost', 'estimated', 'currency'],
];
/** Spreadsheets run cells that begin with these as formulas. In many languages a semicolon begins a cell. */
const FORMULA = /(^|;)(?=[=+\-@\t\r\uff1d\uff0b\uff0d\uff20])/g;
const NEEDS_QUOTES = /[",\r\n]/;

/** Returns CSV as of RFC 4180. */
export function spendCsv(currency: string, entries: readonly SpendEntry[]): string {
  const rows = entries.map((entry) => [
    dayText(entry.day),
    entry.owner.type,
    entry.owner.id,
    entry.owner.name,
    entry.key?.id ?? '',
    entry.key?.name ?? '',
    entry.model,
    String(entry.requests),
    String(entry.promptTokens),
    String(entry.cachedTokens),
    String(entry.completionTokens),
    formatAmount(entry.cost),
    formatAmount(entry.estimated),
    currency,
  ]);
  return [HEADER, ...rows].map((row) => `${row.map(cell).join(',')}\r\n`).join('');
}

function cell(text: string): string {
  const safe = text.replace(FORMULA, "$1'");
  return NEEDS_QUOTES.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
