/** Costs, budgets and prices of a small service. Some names are hostile. */
import type { Budget, PriceTable, Spend } from '../../../../server/platform/api/objects';
import { at, id } from './fixtures';

const OWNER = { type: 'user', id: id('usr', 1), name: 'ada@example.com' } as const;
const KEY = { id: id('key', 1), name: '<script>alert(1)</script>' };

export const SPEND: Spend = {
  currency: 'USD',
  from: '2026-11-15',
  to: '2026-11-21',
  total: '3.75',
  data: ['2026-11-18', '2026-11-19', '2026-11-20'].flatMap((day, i) => [
    {
      day,
      owner: OWNER,
      key: KEY,
      model: 'chat',
      requests: 10 + i,
      prompt_tokens: 1_000,
      cached_tokens: 100,
      completion_tokens: 500,
      cost: '1',
      estimated: '0',
    },
    {
      day,
      owner: OWNER,
      key: null,
      model: 'other',
      requests: 1,
      prompt_tokens: 10,
      cached_tokens: 0,
      completion_tokens: 5,
      cost: '0.25',
      estimated: '0.25',
    },
  ]),
};

export const BUDGETS: Budget[] = [
  {
    id: id('bud', 2),
    scope: 'key',
    owner: OWNER,
    key: KEY,
    period: 'month',
    amount: '25',
    currency: 'USD',
    spent: '3.75',
    reserved: '0.1',
    resets_at: at(60 * 24 * 9),
    alerts: [80, 100],
    created_at: at(-100),
    updated_at: at(-100),
    rev: 4,
  },
  {
    id: id('bud', 1),
    scope: 'owner',
    owner: OWNER,
    key: null,
    period: 'total',
    amount: '500',
    currency: 'USD',
    spent: '3.75',
    reserved: '0',
    resets_at: null,
    alerts: [50],
    created_at: at(-100),
    updated_at: at(-100),
    rev: 3,
  },
];

export const PRICES: PriceTable = {
  currency: 'USD',
  data: [
    {
      id: id('prc', 1),
      model: '*',
      input: '0.05',
      cached_input: '0.05',
      output: '0.2',
      max_output_tokens: 16_384,
      updated_at: at(-200),
      rev: 2,
    },
    {
      id: id('prc', 2),
      model: 'chat',
      input: '0.15',
      cached_input: '0.075',
      output: '0.6',
      max_output_tokens: 4_096,
      updated_at: at(-200),
      rev: 1,
    },
  ],
};
