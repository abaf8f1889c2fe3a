import type { AuditRow } from 'capstan/internal';
import { input, page } from '../json-schema';
import { AuditEvent } from '../objects';
import { cursorNumber, pageOfRows, pagingByNumber } from '../paging';
import { ApiProblem } from '../problem';
import { type ApiRoute, defineRoute } from '../route';
import { msOf, timeOf } from '../times';

const ID = { type: 'string', minLength: 1, maxLength: 100 } as const;

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: '/api/v1/audit',
    summary:
      'List audit events, newest first: of an organization for its admins, of the installation for administrators',
    tag: 'audit',
    auth: 'any',
    query: input({
      ...pagingByNumber(15),
      org: ID,
      actor: ID,
      action: ID,
      target: ID,
      from: { type: 'string', format: 'date-time' },
    }),
    responses: { 200: page(AuditEvent) },
    handle: async ({
      context: { store },
      actor,
      query: { limit, after, org, actor: actorId, action, target, from },
    }) => {
      if (org !== undefined) await store.demandOwner(actor, { type: 'org', id: org }, 'audit.read');
      else if (!actor.isAdmin)
        throw new ApiProblem(
          'forbidden',
          'org: expected an organization that you administer; only administrators may read all events',
        );
      const filter = {
        orgId: org,
        actorId,
        action,
        targetId: target,
        fromMs: msOf(from),
        beforeSeq: cursorNumber(after),
        limit: limit + 1,
      };
      const rows = await store.readAudit(filter);
      const names = await store.objectNames(rows.flatMap((row) => [row.actor_id, row.target_id]));
      return {
        status: 200,
        body: pageOfRows(
          rows,
          limit,
          ({ seq }) => String(seq),
          (row) => view(row, names),
        ),
      };
    },
  }),
];

function view(row: AuditRow, names: ReadonlyMap<string, string>): AuditEvent {
  const named = <T extends string>(type: T, id: string) => ({ type, id, name: names.get(id) ?? null });
  return {
    seq: row.seq,
    id: row.id,
    at: timeOf(row.at),
    actor: named(row.actor_type, row.actor_id),
    org_id: row.org_id,
    action: row.action,
    target: named(row.target_type, row.target_id),
    ip: row.ip,
    user_agent: row.user_agent,
    before: parsed(row.before),
    after: parsed(row.after),
    result: row.result,
  };
}

function parsed(json: string | null): object | null {
  return json === null ? null : (JSON.parse(json) as object);
}
