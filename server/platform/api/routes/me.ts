import { csrfTokenOf } from '../../accounts/sessions';
import { signedIn } from './auth';
import { endedCookie } from '../cookies';
import {
  EmailChange,
  Me,
  MeEdit,
  PasswordChange,
  PasswordProof,
  RecoveryCodes,
  TotpConfirm,
  TotpSecret,
} from '../objects';
import { type ApiCall, type ApiRoute, defineRoute } from '../route';

const TAG = 'account';
const PATH = '/api/v1/me';

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: PATH,
    summary: 'Get your account, and your organizations with your role in each',
    tag: TAG,
    auth: 'any',
    responses: { 200: Me },
    handle: async (call) => ({ status: 200, body: await view(call) }),
  }),
  defineRoute({
    method: 'PATCH',
    path: PATH,
    summary: 'Update your name, language or theme',
    tag: TAG,
    auth: 'any',
    body: MeEdit,
    responses: { 200: Me },
    problems: ['stale'],
    handle: async (call) => {
      await call.context.store.editAccount(call.actor, call.body, call.ifMatch);
      return { status: 200, body: await view(call) };
    },
  }),
  defineRoute({
    method: 'DELETE',
    path: PATH,
    summary: 'Delete your account, its keys and tokens. Not possible with deployments, containers or as the last owner',
    tag: TAG,
    auth: 'session',
    body: PasswordProof,
    responses: { 204: null },
    problems: ['bad_credentials', 'conflict'],
    handle: async ({ context: { store, access, settings }, actor, body }) => {
      await store.deleteOwnAccount(actor, body.password);
      await access.sync();
      return { status: 204, headers: endedCookie(settings) };
    },
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/email`,
    summary: 'Change your email address. Sessions remain valid',
    tag: TAG,
    auth: 'session',
    body: EmailChange,
    responses: { 200: Me },
    problems: ['bad_credentials', 'conflict'],
    handle: async (call) => {
      await call.context.store.changeEmail(call.actor, call.body.email, call.body.password);
      return { status: 200, body: await view(call) };
    },
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/password`,
    summary: 'Change your password. All sessions end, and a new one starts',
    tag: TAG,
    auth: 'session',
    body: PasswordChange,
    responses: { 204: null },
    problems: ['bad_credentials'],
    handle: async (call) =>
      signedIn(call, await call.context.store.changePassword(call.actor, call.body.current, call.body.password)),
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/totp`,
    summary: 'Create a second factor. Confirm it with a code',
    tag: TAG,
    auth: 'session',
    body: PasswordProof,
    secrets: ['secret', 'url'],
    responses: { 201: TotpSecret },
    problems: ['bad_credentials', 'conflict'],
    handle: async ({ context: { store }, actor, body }) => ({
      status: 201,
      body: await store.startTotp(actor, body.password),
    }),
  }),
  defineRoute({
    method: 'PUT',
    path: `${PATH}/totp`,
    summary: 'Confirm the second factor. From then on sign-in requires a code. The recovery codes are shown once',
    tag: TAG,
    auth: 'session',
    body: TotpConfirm,
    responses: { 200: RecoveryCodes },
    problems: ['wrong_state'],
    handle: async ({ context: { store }, actor, body }) => ({
      status: 200,
      body: { recovery_codes: await store.confirmTotp(actor, body.otp) },
    }),
  }),
  defineRoute({
    method: 'POST',
    path: `${PATH}/recovery-codes`,
    summary: 'Replace the recovery codes of the second factor. They are shown once',
    tag: TAG,
    auth: 'session',
    body: PasswordProof,
    secrets: ['recovery_codes'],
    responses: { 201: RecoveryCodes },
    problems: ['bad_credentials', 'wrong_state'],
    handle: async ({ context: { store }, actor, body }) => ({
      status: 201,
      body: { recovery_codes: await store.renewRecoveryCodes(actor, body.password) },
    }),
  }),
  defineRoute({
    method: 'DELETE',
    path: `${PATH}/totp`,
    summary: 'Remove the second factor',
    tag: TAG,
    auth: 'session',
    body: PasswordProof,
    responses: { 204: null },
    problems: ['bad_credentials'],
    handle: async ({ context: { store }, actor, body }) => {
      await store.removeTotp(actor, body.password);
      return { status: 204 };
    },
  }),
];

async function view({
  context: { store, settings },
  actor,
  session,
}: Pick<ApiCall, 'context' | 'actor' | 'session'>): Promise<Me> {
  const { userId, email, name, locale, theme, isAdmin, hasPassword, hasTotp, quotas, rev } = await store.findAccount(
    actor.userId,
  );
  const organizations = await store.listOrganizations(actor);
  return {
    id: userId,
    email,
    name,
    locale,
    theme,
    is_admin: isAdmin,
    has_password: hasPassword,
    has_totp: hasTotp,
    recovery_codes_left: await store.countRecoveryCodes(actor),
    ...quotas,
    organizations: organizations.map((org) => ({ id: org.id, slug: org.slug, name: org.name, role: org.role })),
    via: actor.via,
    session_guard: settings.sessionGuard,
    csrf_token: session === undefined ? null : csrfTokenOf(session.token),
    rev,
  };
}
