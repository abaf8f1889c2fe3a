import type { Invitation as StoredInvitation } from '../../accounts/invitations';
import { limitAttempts, signedIn } from './auth';
import { clientOf } from '../authenticate';
import { input, page } from '../json-schema';
import {
  AcceptInvitation,
  Invitation,
  InvitationToken,
  InvitationView,
  MadeInvitation,
  NewInvitation,
} from '../objects';
import { requireCsrfToken } from '../cross-site';
import { pageOf, pagingById } from '../paging';
import { ApiProblem } from '../problem';
import { type ApiRoute, defineRoute } from '../route';
import { timeOf } from '../times';

const TAG = 'organizations';
const PATH = '/api/v1/orgs/{org}/invitations';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'List open invitations (members who may invite)',
    tag: TAG,
    auth: 'any',
    query: input(pagingById('inv')),
    responses: { 200: page(Invitation) },
    handle: async ({ context: { store }, actor, params, query }) => ({
      status: 200,
      body: pageOf((await store.listInvitations(actor, params.org)).map(view), query, ({ id }) => id),
    }),
  }),
  defineRoute({
    method: 'POST',
    path: PATH,
    summary: 'Invite an email address. The token is shown once',
    tag: TAG,
    auth: 'any',
    body: NewInvitation,
    secrets: ['token'],
    responses: { 201: MadeInvitation },
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
    responses: { 204: null },
    handle: async ({ context: { store }, actor, params }) => {
      await store.revokeInvitation(actor, params.org, params.id);
      return { status: 204 };
    },
  }),
  defineRoute({
    method: 'POST',
    path: '/api/v1/invitations/inspect',
    summary: 'Get the organization, address and role of an invitation',
    tag: TAG,
    auth: 'none',
    body: InvitationToken,
    responses: { 200: InvitationView },
    problems: ['gone', 'too_many_attempts'],
    handle: async (call) => {
      const { organization, email, role, hasAccount } = await limitAttempts(call, () =>
        call.context.store.findInvitation(call.body.token),
      );
      return { status: 200, body: { organization, email, role, has_account: hasAccount } };
    },
  }),
  defineRoute({
    method: 'POST',
    path: '/api/v1/invitations/accept',
    summary: 'Accept an invitation, signed in or with a name and password for a new account',
    tag: TAG,
    auth: 'none',
    body: AcceptInvitation,
    responses: { 204: null },
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
          throw new ApiProblem('session_required', 'this requires a console session, not a management token');
        requireCsrfToken(request, call.session);
        await limitAttempts(call, () => store.acceptInvitation(call.actor, token));
        return { status: 204 };
      }
      if (name === undefined || password === undefined)
        throw new ApiProblem(
          'unauthenticated',
          'sign in with the invited account, or send a name and a password for a new account',
        );
      return signedIn(
        call,
        await limitAttempts(call, () =>
          store.acceptInvitationWithNewAccount(token, { name, password }, clientOf(request, address)),
        ),
      );
    },
  }),
];

function view({ id, email, role, invitedBy, expiresAt }: StoredInvitation): Invitation {
  return { id, email, role, invited_by: invitedBy, expires_at: timeOf(expiresAt) };
}
