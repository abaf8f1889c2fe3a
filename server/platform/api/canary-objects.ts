import { CANARY_STATES } from '../canary/canary-schema';
import { input, list, object, oneOf, orNull, type Static } from './json-schema';

const SPLIT = {
  percent: { type: 'integer', minimum: 0, maximum: 100, description: 'Share of the requests' },
  header: orNull({
    type: 'string',
    maxLength: 300,
    description: 'Requests with this header go to the canary, such as `X-Canary: yes`',
  }),
  keys: {
    ...list({ type: 'string', maxLength: 100 }, { maxItems: 100 }),
    description: 'Requests with these keys of the owner, by ID, go to the canary',
  },
} as const;

/** Which requests go to a canary. */
export const CanarySplit = input(SPLIT, 'percent');
const VariantStats = object({
  requests: { type: 'integer' },
  errors: { type: 'integer', description: 'Status 500 or higher, or a replica that did not respond or broke off' },
  first_token_ms: orNull({ type: 'number', description: 'Median of the last 100 successful requests' }),
});
export const Canary = object({
  version: { type: 'integer' },
  ...SPLIT,
  state: oneOf(CANARY_STATES),
  reason: orNull({ type: 'string', description: 'Why it was rolled back' }),
  stable: VariantStats,
  canary: VariantStats,
  started_at: { type: 'string', format: 'date-time' },
  decided_at: orNull({ type: 'string', format: 'date-time' }),
});

export const LastCanary = object({ canary: orNull(Canary) });

export type LastCanary = Static<typeof LastCanary>;
export type CanarySplit = Static<typeof CanarySplit>;
export type Canary = Static<typeof Canary>;
