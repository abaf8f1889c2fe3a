import { BUDGET_PERIODS, BUDGET_SCOPES } from '../money/money-schema';
import { input, list, object, oneOf, orNull, type Static } from './json-schema';

const STRING = { type: 'string' } as const;
const INTEGER = { type: 'integer' } as const;
const TIME = { type: 'string', format: 'date-time' } as const;
const AMOUNT = { type: 'string', description: 'Decimal number in the currency of the service' } as const;
const PRICE = {
  type: 'string',
  pattern: '^\\d{1,10}(\\.\\d{1,6})?$',
  description: 'a decimal number per million tokens, such as "0.15"',
} as const;
const NEW_AMOUNT = {
  type: 'string',
  pattern: '^\\d{1,10}(\\.\\d{1,9})?$',
  description: 'a decimal number in the currency of the service, such as "25"',
} as const;
const ALERTS = {
  ...list({ type: 'integer', minimum: 1, maximum: 100 }, { maxItems: 10 }),
  description: 'Percentages of the amount that cause an event `budget.alert`. Default: 80 and 100',
} as const;
const PERIOD = { ...oneOf(BUDGET_PERIODS), description: 'In UTC' } as const;

/** What the tokens of a model cost, per million. */
export const Price = object({
  id: STRING,
  model: {
    type: 'string',
    description: 'Name or ID of a deployment, `NAME/MODEL`, or `*` for all deployments without a price',
  },
  input: PRICE,
  cached_input: { ...PRICE, description: 'For tokens of the prompt that the prefix cache had' },
  output: PRICE,
  max_output_tokens: { ...INTEGER, description: 'What a request without a limit may generate under a budget' },
  updated_at: TIME,
  rev: INTEGER,
});
export const PriceTable = object({ currency: STRING, data: list(Price) });
export const NewPrice = input(
  {
    model: { type: 'string', minLength: 1, maxLength: 300 },
    input: PRICE,
    cached_input: PRICE,
    output: PRICE,
    max_output_tokens: { type: 'integer', minimum: 1, maximum: 10_000_000, default: 16_384 },
  },
  'model',
  'input',
  'output',
);
export const CurrencyEdit = input({ currency: { type: 'string', minLength: 1, maxLength: 12 } }, 'currency');
export const Currency = object({ currency: STRING });

const OWNER = object({ type: oneOf(['user', 'org']), id: STRING, name: STRING });

/** A hard limit of what requests may cost. */
export const Budget = object({
  id: STRING,
  scope: oneOf(BUDGET_SCOPES),
  owner: OWNER,
  key: orNull(object({ id: STRING, name: STRING })),
  period: PERIOD,
  amount: AMOUNT,
  currency: STRING,
  spent: { ...AMOUNT, description: 'In the current period. After a crash it includes what open requests had reserved' },
  reserved: { ...AMOUNT, description: 'For open requests' },
  resets_at: orNull({ ...TIME, description: 'When the next period begins' }),
  alerts: ALERTS,
  created_at: TIME,
  updated_at: TIME,
  rev: INTEGER,
});
export const NewBudget = input(
  {
    subject: {
      type: 'string',
      pattern: '^(key|usr|org)_[0-9a-z]{26}$',
      description: 'the ID of a key, of a user or of an organization',
    },
    amount: NEW_AMOUNT,
    period: PERIOD,
    alerts: ALERTS,
  },
  'subject',
  'amount',
  'period',
);
export const BudgetEdit = input({ amount: NEW_AMOUNT, alerts: ALERTS });

/** What the requests of one day, owner, key and model have cost. */
export const SpendEntry = object({
  day: { type: 'string', description: 'In UTC' },
  owner: OWNER,
  key: orNull(object({ id: STRING, name: orNull({ type: 'string', description: 'Null after deletion' }) })),
  model: STRING,
  requests: INTEGER,
  prompt_tokens: INTEGER,
  cached_tokens: INTEGER,
  completion_tokens: INTEGER,
  cost: AMOUNT,
  estimated: { ...AMOUNT, description: 'Part of the cost that is an estimate: a response reported no usage' },
});
export const Spend = object({ currency: STRING, from: STRING, to: STRING, total: AMOUNT, data: list(SpendEntry) });

export type Price = Static<typeof Price>;
export type PriceTable = Static<typeof PriceTable>;
export type NewPrice = Static<typeof NewPrice>;
export type Budget = Static<typeof Budget>;
export type NewBudget = Static<typeof NewBudget>;
export type BudgetEdit = Static<typeof BudgetEdit>;
export type SpendEntry = Static<typeof SpendEntry>;
export type Spend = Static<typeof Spend>;
