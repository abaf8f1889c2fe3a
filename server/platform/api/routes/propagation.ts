import { type Access, PROPAGATION_CEILING_MS } from 'capstan/internal';
import { Propagation } from '../objects';
import { ApiProblem } from '../problem';
import { type ApiRoute, defineRoute } from '../route';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: '/api/v1/propagation/{rev}',
    summary: 'Get the number of gateways that have applied a change of keys or access control',
    tag: 'keys',
    auth: 'any',
    responses: { 200: Propagation },
    handle: async ({ context: { access }, params }) => {
      if (!/^\d{1,15}$/.test(params.rev)) throw new ApiProblem('not_found', 'this revision does not exist');
      return { status: 200, body: await propagationOf(access, Number(params.rev)) };
    },
  }),
];

/** Returns the progress of a change, in wire form. */
export async function propagationOf(access: Pick<Access, 'propagation'>, rev: number): Promise<Propagation> {
  const { applied, total, maxLagMs } = await access.propagation(rev);
  return { rev, applied, total, max_lag_ms: maxLagMs, ceiling_s: PROPAGATION_CEILING_MS / 1000 };
}
