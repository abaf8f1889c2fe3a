import type { Invitation as StoredInvitation } from '../service/invitations';
import { guarded, signedIn } from './auth';
import { from } from './authenticate';
import { input, page } from './json-schema';
import {
  AcceptInvitation,
  Invitation,
  InvitationToken,
  InvitationView,
  MadeInvitation,
  NewInvitation,
} from './objects';
import { demandCsrfToken } from './own-page';
import { pageOf, pagingById } from './paging';
import { ApiProblem } from './problem';
import { type ApiRoute, defineRoute } from './route';
import { timeOf } from './times';

const TAG = 'organizations';
const PATH = '/api/v1/orgs/{org}/invitations';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'Open invitations, for those who may invite',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('inv')),
    answers: { 200: page(Invitation) },
    handle: async ({ context: { store }, actor, params, query }) => ({
      status: 200,
      body: pageOf((await store.listInvitations(actor, params.org)).map(view), query, ({ id }) => id),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Invite an address: the token is shown once',
    tag: TAG,
    auth: 'any',
    body: NewInvitation,
    secrets: ['token'],
    answers: { 201: MadeInvitation },
    problems: ['conflict'],
    handle: async ({ context: { store }, actor, params, body }) => {
      const { invitation, token } = await store.invite(actor, params.org, body);
      return { status: 201, body: { ...view(invitation), token } };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/{id}`,
    summary: 'Withdraw an invitation',
    tag: TAG,
    auth: 'any',
    answers: { 204: null },
    handle: async ({ context: { store }, actor, params }) => {
      await store.revokeInvitation(actor, params.org, params.id);
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'POST',
    path: '/api/v1/invitations/inspect',
    summary: 'What an invitation is for',
    tag: TAG,
    auth: 'none',
    body: InvitationToken,
    answers: { 200: InvitationView },
    problems: ['gone', 'too_many_attempts'],
    handle: async (call) => {
      const { organization, email, role, hasAccount } = await guarded(call, () =>
        call.context.store.findInvitation(call.body.token),
      );
      return { status: 200, body: { organization, email, role, has_account: hasAccount } };
    },
  }),
  defineRoute({
    method: 'POST',
    path: '/api/v1/invitations/accept',
    summary: 'Accept an invitation: signed in, or with a name and a password for a new account',
    tag: TAG,
    auth: 'none',
    body: AcceptInvitation,
    answers: { 204: null },
    problems: ['gone', 'forbidden', 'conflict', 'unauthenticated', 'too_many_attempts'],
    handle: async (call) => {
      const {
        context: { store },
        body: { token, name, password },
        request,
        address,
      } = call;
      if (call.hasActor) {
        if (call.session === undefined)
          throw new ApiProblem('session_required', 'this needs a console session: a management token may not do it');
        demandCsrfToken(request, call.session);
        await guarded(call, () => store.acceptInvitation(call.actor, token));
        return { status: 204 };
      }
      if (name === undefined || password === undefined)
        throw new ApiProblem(
          'unauthenticated',
          'sign in with the account that was invited, or send a name and a password for a new one',
        );
      return signedIn(
        call,
        await guarded(call, () => store.acceptInvitationAnew(token, { name, password }, from(request, address))),
      );
    },
  }),
];

function view({ id, email, role, invitedBy, expiresAt }: StoredInvitation): Invitation {
  return { id, email, role, invited_by: invitedBy, expires_at: timeOf(expiresAt) };
}
