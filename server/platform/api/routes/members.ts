import type { Member as StoredMember } from '../../accounts/organizations';
import { input, page } from '../json-schema';
import { Member, MemberEdit } from '../objects';
import { pageOf, pagingById } from '../paging';
import { ApiProblem } from '../problem';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';

const TAG = 'organizations';
const PATH = '/api/v1/orgs/{org}/members';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List the members of an organization, by email address',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('usr')),
    responses: { 200: page(Member) },
    handle: async ({ context: { store }, actor, params, query }) => ({
      status: 200,
      body: pageOf((await store.listMembers(actor, params.org)).map(view), query, (member) => member.user_id),
    }),
  }),
  defineRoute({
    method: 'PATCH',
    path: `${PATH}/{user}`,
    summary: 'Change the role of a member. They must sign in again',
    tag: TAG,
    auth: 'any',
    body: MemberEdit,
    responses: { 200: Member },
    problems: ['conflict'],
    handle: async (call) => {
      await call.context.store.setMemberRole(call.actor, call.params.org, call.params.user, call.body.role);
      return { status: 200, body: view(await find(call)) };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{user}`,
    summary: 'Remove a member, or leave the organization',
    tag: TAG,
    auth: 'any',
    responses: { 204: null },
    problems: ['conflict'],
    handle: async ({ context: { store }, actor, params }) => {
      await store.removeMember(actor, params.org, params.user);
      return { status: 204 };
    },
  }),
];

async function find({
  context: { store },
  actor,
  params,
}: Pick<ApiCall, 'context' | 'actor' | 'params'>): Promise<StoredMember> {
  const member = (await store.listMembers(actor, params.org)).find(({ userId }) => userId === params.user);
  if (member === undefined) throw new ApiProblem('not_found', 'this member does not exist');
  return member;
}

function view({ userId, email, name, role }: StoredMember): Member {
  return { user_id: userId, email, name, role };
}
