import type { Command } from 'commander';
import { type CommandIo, renderTable, UsageError } from 'capstan/internal/cli';
import type { Client } from '../api/client';
import type { Budget, Me, OwnerQuota, Price, PriceTable, Spend, SpendEntry } from '../api/objects';
import { findOwner } from './find';
import { type Call, printJson, remote, requireYes } from './remote';
import { defined } from './spec-flags';
import { formatTime, plain } from './text';

interface PriceFlags {
  input?: string;
  cachedInput?: string;
  output?: string;
  maxOutputTokens?: string;
}
interface BudgetFlags {
  key?: string;
  owner?: string;
  per?: string;
  alert?: string[];
}
interface SpendFlags {
  owner?: string;
  key?: string;
  from?: string;
  to?: string;
  by?: string;
  csv?: boolean;
}

const PERIODS = ['day', 'month', 'total'];

/** Adds `capstan prices …`, `capstan budgets …` and `capstan spend`. */
export function addMoneyCommands(program: Command, io?: CommandIo): void {
  const prices = program
    .command('prices')
    .description('show and change the prices of tokens')
    .addHelpText('after', PRICES_TAIL);
  remote(prices, 'list', 'list the prices per million tokens', listPrices, io);
  remote<PriceFlags>(
    prices,
    'set <model>',
    "set the price of a deployment NAME, of its model NAME/MODEL, or of all others with '*' (administrators)",
    setPrice,
    io,
  )
    .requiredOption('--input <price>', 'price of a million prompt tokens (required)')
    .requiredOption('--output <price>', 'price of a million completion tokens (required)')
    .option('--cached-input <price>', 'price of a million prompt tokens found in the prefix cache (default: --input)')
    .option(
      '--max-output-tokens <number>',
      'maximum number of completion tokens of a request without a limit, under a budget (default: 16384)',
    );
  remote(
    prices,
    'currency <name>',
    'set the name of the currency of all prices and budgets; no amount changes (administrators)',
    setCurrency,
    io,
  );
  remote<{ yes?: boolean }>(prices, 'delete <model>', 'delete a price (administrators)', deletePrice, io).option(
    '--yes',
    'confirm the deletion',
  );

  const budgets = program
    .command('budgets')
    .description('limit what keys and owners may spend')
    .addHelpText('after', BUDGETS_TAIL);
  remote(budgets, 'list', 'list budgets, and what was spent in the current period of each', listBudgets, io);
  remote<BudgetFlags>(budgets, 'create <amount>', 'create a budget for a key or an owner', createBudget, io)
    .option('--key <id>', 'limit this key')
    .option('--owner <owner>', 'limit user:EMAIL or org:SLUG (administrators)')
    .requiredOption('--per <period>', 'period of the budget: day, month or total (required)')
    .option('--alert <percent...>', 'percentages at which the event budget.alert is sent (default: 80 and 100)');
  remote<BudgetFlags & { amount?: string }>(budgets, 'edit <budget>', 'change a budget', editBudget, io)
    .option('--amount <amount>', 'the new amount')
    .option('--alert <percent...>', 'the new percentages');
  remote<{ yes?: boolean }>(budgets, 'delete <budget>', 'delete a budget', deleteBudget, io).option(
    '--yes',
    'confirm the deletion',
  );

  remote<SpendFlags>(program, 'spend', 'show what requests have cost', spend, io)
    .option('--owner <owner>', 'only requests of org:SLUG, or of yourself: me')
    .option('--key <id>', 'only requests with this key')
    .option('--from <day>', 'first day in UTC, such as 2030-01-01 (default: 30 days before the last)')
    .option('--to <day>', 'last day in UTC (default: today)')
    .option('--by <what>', 'group by day, owner, key or model', 'day')
    .option('--csv', 'print all entries as CSV');
}

async function listPrices({ client, flags, io }: Call<object>): Promise<void> {
  const table = await client.request<PriceTable>('GET', '/prices');
  if (flags.json) return printJson(io, table);
  io.out(
    renderTable(
      ['MODEL', 'INPUT', 'CACHED', 'OUTPUT', 'MAX OUTPUT', 'CURRENCY'],
      table.data.map((price) => [
        plain(price.model),
        price.input,
        price.cached_input,
        price.output,
        String(price.max_output_tokens),
        table.currency,
      ]),
    ),
  );
}

async function setPrice({ client, flags, args: [model], io }: Call<PriceFlags>): Promise<void> {
  const price = await client.request<Price>('PUT', '/prices', {
    body: {
      model,
      input: flags.input,
      output: flags.output,
      ...defined('cached_input', flags.cachedInput),
      ...(flags.maxOutputTokens === undefined ? {} : { max_output_tokens: Number(flags.maxOutputTokens) }),
    },
  });
  if (flags.json) return printJson(io, price);
  io.out(`set the price of ${plain(price.model)}\n`);
}

async function setCurrency({ client, flags, args: [currency], io }: Call<object>): Promise<void> {
  const changed = await client.request('PATCH', '/prices', { body: { currency } });
  if (flags.json) return printJson(io, changed);
  io.out(`prices and budgets are in ${plain(currency)}\n`);
}

async function deletePrice({ client, flags, args: [model], io }: Call<{ yes?: boolean }>): Promise<void> {
  const { data } = await client.request<PriceTable>('GET', '/prices');
  const found = data.find((price) => price.model === model || price.id === model);
  if (found === undefined) throw Object.assign(new Error(`${model} has no price`), { code: 'not_found' });
  requireYes(flags, `delete the price of ${plain(found.model)}`);
  await client.request('DELETE', `/prices/${found.id}`);
  if (!flags.json) io.out(`deleted the price of ${plain(found.model)}\n`);
}

async function listBudgets({ client, flags, io }: Call<object>): Promise<void> {
  const found = await client.all<Budget>('/budgets', {});
  if (flags.json) return printJson(io, { data: found, next: null });
  io.out(
    renderTable(
      ['FOR', 'AMOUNT', 'PER', 'SPENT', 'RESERVED', 'RESETS', 'ID'],
      found.map((budget) => [
        subjectOf(budget),
        `${budget.amount} ${budget.currency}`,
        budget.period,
        budget.spent,
        budget.reserved,
        budget.resets_at === null ? '-' : formatTime(budget.resets_at),
        budget.id,
      ]),
    ),
  );
}

function subjectOf({ key, owner }: Budget): string {
  return key === null
    ? `${owner.type}:${plain(owner.name)}`
    : `key ${plain(key.name)} of ${owner.type}:${plain(owner.name)}`;
}

async function createBudget({ client, flags, args: [amount], io }: Call<BudgetFlags>): Promise<void> {
  if ((flags.key === undefined) === (flags.owner === undefined))
    throw new UsageError('expected either --key or --owner');
  if (!PERIODS.includes(flags.per ?? ''))
    throw new UsageError(`--per: expected day, month or total, got '${flags.per}'`);
  const created = await client.request<Budget>('POST', '/budgets', {
    body: {
      subject: flags.key ?? (await ownerId(client, flags.owner as string)),
      amount,
      period: flags.per,
      ...defined('alerts', percentages(flags.alert)),
    },
  });
  if (flags.json) return printJson(io, created);
  io.out(`created ${created.id}: ${created.amount} ${created.currency}, ${created.spent} spent\n`);
}

async function editBudget({ client, flags, args: [id], io }: Call<BudgetFlags & { amount?: string }>): Promise<void> {
  if (flags.amount === undefined && flags.alert === undefined)
    throw new UsageError('nothing to change: expected --amount or --alert');
  const changed = await client.request<Budget>('PATCH', `/budgets/${encodeURIComponent(id)}`, {
    body: { ...defined('amount', flags.amount), ...defined('alerts', percentages(flags.alert)) },
  });
  if (flags.json) return printJson(io, changed);
  io.out(`changed ${changed.id}: ${changed.amount} ${changed.currency}, ${changed.spent} spent\n`);
}

async function deleteBudget({ client, flags, args: [id], io }: Call<{ yes?: boolean }>): Promise<void> {
  requireYes(flags, `delete ${id}`);
  await client.request('DELETE', `/budgets/${encodeURIComponent(id)}`);
  if (!flags.json) io.out(`deleted ${id}\n`);
}

function percentages(texts: readonly string[] | undefined): number[] | undefined {
  return texts?.map((text) => {
    if (!/^\d{1,3}$/.test(text)) throw new UsageError(`--alert: expected a percentage from 1 to 100, got '${text}'`);
    return Number(text);
  });
}

/** Administrators name any owner. */
async function ownerId(client: Client, text: string): Promise<string> {
  const [, type, name] = /^(user|org):(.+)$/.exec(text) ?? [];
  if (type === undefined) throw new UsageError(`--owner: expected user:EMAIL or org:SLUG, got '${text}'`);
  const found = (await client.all<OwnerQuota>('/quotas', { q: name })).find(
    ({ owner }) => owner.type === type && owner.name === name,
  );
  if (found === undefined) throw Object.assign(new Error(`there is no ${text}`), { code: 'not_found' });
  return found.owner.id;
}

const GROUPS: Readonly<Record<string, (entry: SpendEntry) => string>> = {
  day: ({ day }) => day,
  owner: ({ owner }) => `${owner.type}:${plain(owner.name)}`,
  key: ({ key }) => (key === null ? '-' : plain(key.name ?? key.id)),
  model: ({ model }) => plain(model),
};

async function spend({ client, flags, io }: Call<SpendFlags>): Promise<void> {
  const group = GROUPS[flags.by ?? 'day'];
  if (group === undefined) throw new UsageError(`--by: expected day, owner, key or model, got '${flags.by}'`);
  const owner = await findOwner(client, flags.owner);
  const isOwn = flags.owner !== undefined && owner === undefined;
  const query = {
    ...defined('owner', isOwn ? (await client.request<Me>('GET', '/me')).id : owner?.id),
    ...defined('key', flags.key),
    ...defined('from', flags.from),
    ...defined('to', flags.to),
  };
  if (flags.csv === true) {
    io.out(await client.text('/spend/csv', query));
    return;
  }
  const report = await client.request<Spend>('GET', '/spend', { query });
  if (flags.json) return printJson(io, report);
  const rows = new Map<string, { requests: number; tokens: number; nanos: bigint }>();
  for (const entry of report.data) {
    const row = rows.get(group(entry)) ?? { requests: 0, tokens: 0, nanos: 0n };
    row.requests += entry.requests;
    row.tokens += entry.prompt_tokens + entry.completion_tokens;
    row.nanos += toNanos(entry.cost);
    rows.set(group(entry), row);
  }
  io.out(
    renderTable(
      [(flags.by ?? 'day').toUpperCase(), 'REQUESTS', 'TOKENS', report.currency.toUpperCase()],
      [...rows].map(([name, { requests, tokens, nanos }]) => [name, String(requests), String(tokens), toText(nanos)]),
    ),
  );
  io.out(`total from ${report.from} to ${report.to}: ${report.total} ${report.currency}\n`);
}

const NANO_DIGITS = 9;

/** Amounts are decimal numbers, which are added exactly. */
function toNanos(text: string): bigint {
  const [whole, fraction = ''] = text.split('.');
  return BigInt(whole + fraction.padEnd(NANO_DIGITS, '0'));
}

function toText(nanos: bigint): string {
  const text = nanos.toString().padStart(NANO_DIGITS + 1, '0');
  return `${text.slice(0, -NANO_DIGITS)}.${text.slice(-NANO_DIGITS)}`.replace(/\.?0+$/, '');
}

const PRICES_TAIL = `
Examples:
  capstan prices set chat --input 0.15 --cached-input 0.075 --output 0.6
  capstan prices set '*' --input 0.05 --output 0.2    all other deployments
  capstan prices currency EUR
`;

const BUDGETS_TAIL = `
Examples:
  capstan budgets create 25 --per month --key key_… --alert 50 80 100
  capstan budgets create 500 --per month --owner org:research
  capstan spend --by model --from 2030-01-01
`;
