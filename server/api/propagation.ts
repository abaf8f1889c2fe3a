import type { Access } from '../access';
import { PROPAGATION_CEILING_MS } from '../access/gateways';
import { Propagation } from './objects';
import { ApiProblem } from './problem';
import { type ApiRoute, defineRoute } from './route';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: '/api/v1/propagation/{rev}',
    summary: 'Which gateways have applied a change of keys or of access',
    tag: 'keys',
    auth: 'any',
    answers: { 200: Propagation },
    handle: async ({ context: { access }, params }) => {
      if (!/^\d{1,15}$/.test(params.rev)) throw new ApiProblem('not_found', 'there is no such revision');
      return { status: 200, body: await propagationOf(access, Number(params.rev)) };
    },
  }),
];

/** How far a change has come, as its answer says it. */
export async function propagationOf(access: Pick<Access, 'propagation'>, rev: number): Promise<Propagation> {
  const { applied, total, maxLagMs } = await access.propagation(rev);
  return { rev, applied, total, max_lag_ms: maxLagMs, ceiling_s: PROPAGATION_CEILING_MS / 1000 };
}
