import { sql } from 'kysely';
import { newId } from 'capstan/internal';
import { changeOptions, demandAdmin, type ServiceActor } from '../accounts/actor';
import { serviceChange } from '../store/change';
import { ServiceError } from '../store/errors';
import type { ServiceTx } from '../store/schema';
import type { StoreContext } from '../store/store-context';
import { formatPrice, parsePrice } from './amounts';
import { amountLiteral, type ModelPrice, readCurrency, readPrices } from './money-rows';

/** Prices per million tokens, as decimal numbers. */
export interface PriceSpec {
  model: string;
  input: string;
  /** Default: `input`. */
  cached_input?: string;
  output: string;
  max_output_tokens?: number;
}

export interface PriceTable {
  currency: string;
  prices: ModelPrice[];
}

const MAX_PRICES = 1_000;
/** What a request without a limit may generate, unless its price says otherwise. */
const DEFAULT_OUTPUT_TOKENS = 16_384;
const CURRENCY = /^[A-Za-z]{1,12}$/;

export async function listPrices({ db }: StoreContext): Promise<PriceTable> {
  return { currency: await readCurrency(db), prices: await readPrices(db) };
}

/** Sets the price of a model, and replaces the one it had. */
export function setPrice({ db, now }: StoreContext, actor: ServiceActor, spec: PriceSpec): Promise<ModelPrice> {
  demandAdmin(actor);
  const nowMs = now();
  const prices = {
    input: checkPrice('input', spec.input),
    cachedInput: checkPrice('cached_input', spec.cached_input ?? spec.input),
    output: checkPrice('output', spec.output),
    maxOutputTokens: spec.max_output_tokens ?? DEFAULT_OUTPUT_TOKENS,
  };
  return serviceChange(db, nowMs, changeOptions(actor), async ({ tx, rev, record }) => {
    const all = await readPrices(tx);
    const before = all.find(({ model }) => model === spec.model);
    if (before === undefined && all.length >= MAX_PRICES)
      throw new ServiceError('quota_exceeded', `a service can have at most ${MAX_PRICES} prices: delete one first`);
    const after: ModelPrice = {
      ...prices,
      id: before?.id ?? newId('prc', nowMs),
      model: spec.model,
      updatedAt: nowMs,
      rev,
    };
    await tx.deleteFrom('money_prices').where('id', '=', after.id).execute();
    await sql`insert into money_prices (id, model, input, cached_input, output, max_output_tokens, updated_at, rev)
      values (${after.id}, ${after.model}, ${amountLiteral(after.input)}, ${amountLiteral(after.cachedInput)},
        ${amountLiteral(after.output)}, ${sql.lit(after.maxOutputTokens)}, ${sql.lit(nowMs)}, ${sql.lit(rev)})`.execute(
      tx,
    );
    record({
      action: 'price.updated',
      ...subjectsOf(actor, after.id),
      ...(before === undefined ? {} : { before: auditView(before) }),
      after: auditView(after),
    });
    return after;
  });
}

export function deletePrice({ db, now }: StoreContext, actor: ServiceActor, id: string): Promise<void> {
  demandAdmin(actor);
  return serviceChange(db, now(), changeOptions(actor), async ({ tx, record }) => {
    const before = await findPrice(tx, id);
    await tx.deleteFrom('money_prices').where('id', '=', id).execute();
    record({ action: 'price.deleted', ...subjectsOf(actor, id), before: auditView(before) });
  });
}

/** Names the currency of all prices and budgets. Amounts do not change. */
export function setCurrency({ db, now }: StoreContext, actor: ServiceActor, currency: string): Promise<void> {
  demandAdmin(actor);
  if (!CURRENCY.test(currency))
    throw new ServiceError('invalid_argument', 'currency: expected 1 to 12 letters, such as USD');
  return serviceChange(db, now(), changeOptions(actor), async ({ tx, record }) => {
    const before = await readCurrency(tx);
    await tx.updateTable('money_settings').set({ currency }).execute();
    const admin = { type: 'user', id: actor.userId } as const;
    record({
      action: 'price.currency',
      owner: admin,
      target: admin,
      before: { currency: before },
      after: { currency },
    });
  });
}

async function findPrice(tx: ServiceTx, id: string): Promise<ModelPrice> {
  const found = (await readPrices(tx)).find((price) => price.id === id);
  if (found === undefined) throw new ServiceError('not_found', 'price not found');
  return found;
}

function checkPrice(param: string, text: string): bigint {
  const price = parsePrice(text);
  if (price === undefined)
    throw new ServiceError(
      'invalid_argument',
      `${param}: expected a price per million tokens from 0 to 1000000000, with at most 6 decimals, such as 0.15`,
    );
  return price;
}

function subjectsOf({ userId }: ServiceActor, id: string) {
  return { owner: { type: 'user', id: userId }, target: { type: 'price', id } } as const;
}

function auditView({ model, input, cachedInput, output, maxOutputTokens }: ModelPrice): object {
  return {
    model,
    input: formatPrice(input),
    cached_input: formatPrice(cachedInput),
    output: formatPrice(output),
    max_output_tokens: maxOutputTokens,
  };
}
