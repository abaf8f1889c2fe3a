import { ROLES } from '../accounts/roles';
import { input, list, object, oneOf, orNull, partial, record, type Static } from './json-schema';

const STRING = { type: 'string' } as const;
const BOOLEAN = { type: 'boolean' } as const;
const Time = { type: 'string', format: 'date-time' } as const;
const Name = { type: 'string', minLength: 1, maxLength: 100 } as const;
const Text = { type: 'string', minLength: 1, maxLength: 1_000 } as const;
const Url = { type: 'string', minLength: 1, maxLength: 2_000 } as const;

const GroupMapping = input(
  {
    group: { type: 'string', minLength: 1, maxLength: 500 },
    org: { type: 'string', maxLength: 100, description: 'Slug or ID of an organization' },
    role: oneOf(ROLES),
  },
  'group',
  'org',
  'role',
);
const PROVIDER = {
  name: { ...Name, description: 'Label of the sign-in button' },
  client_id: Text,
  scopes: list({ type: 'string', minLength: 1, maxLength: 200 }, { maxItems: 50 }),
  groups_claim: {
    type: 'string',
    minLength: 1,
    maxLength: 200,
    description: 'Claim with the groups of a user, such as `groups` or `realm_access.roles`',
  },
  mappings: list(GroupMapping, { maxItems: 200 }),
  authorization_params: {
    ...record({ type: 'string', maxLength: 1_000 }, '^[A-Za-z0-9_.-]{1,100}$'),
    description: 'Additional parameters of the authorization request, such as `prompt`',
  },
  email_domains: {
    ...list({ type: 'string', minLength: 1, maxLength: 253 }, { maxItems: 50 }),
    description: 'Only users with a verified address of these domains may sign in. Empty: all users',
  },
  requires_group: { type: 'boolean', description: 'Whether only users in a mapped group may sign in' },
  links_by_email: {
    type: 'boolean',
    description: 'Whether the first sign-in takes over an existing account with the same verified address',
  },
  own_redirect_uri: {
    type: 'boolean',
    description: 'Whether the redirect URI names this provider. Providers without this setting share one',
  },
  recheck_s: {
    type: 'integer',
    minimum: 300,
    maximum: 604_800,
    description: 'How long a sign-in counts before the provider must confirm it',
  },
  enabled: BOOLEAN,
} as const;

const ClientSecret = orNull({
  type: 'string',
  minLength: 1,
  maxLength: 2_000,
  description: 'Encrypted and never returned. Null for a public client',
});

export const IdentityProvider = object({
  id: STRING,
  issuer: STRING,
  ...PROVIDER,
  has_client_secret: BOOLEAN,
  redirect_uri: { type: 'string', description: 'Redirect URI to register at the provider' },
  users: { type: 'integer', description: 'Users who have signed in' },
  created_at: Time,
  updated_at: Time,
  rev: { type: 'integer', description: 'Current revision: the value of `ETag`, and of `If-Match` in a change' },
});
export const IdentityProviderEdit = partial({ properties: { ...PROVIDER, client_secret: ClientSecret } });
export const NewIdentityProvider = input(
  {
    ...PROVIDER,
    issuer: { ...Url, description: 'an https:// URL, as in the metadata of the provider' },
    client_secret: ClientSecret,
  },
  'name',
  'issuer',
  'client_id',
);

/** What the sign-in page shows before the sign-in. */
export const SignInProviders = object({ data: list(object({ id: STRING, name: Name })) });
export const ProviderSignInStart = input({
  return_to: { type: 'string', maxLength: 1_000, description: 'Path of the console to open after the sign-in' },
});
export const ProviderSignIn = object({
  url: { type: 'string', description: 'Address of the provider to open' },
  state: { type: 'string', description: 'The response of the provider must have this `state`' },
});
const ResponseText = { type: 'string', maxLength: 8_000 } as const;
/** The parameters of the provider's response. */
export const ProviderResponse = input(
  {
    state: ResponseText,
    code: ResponseText,
    iss: ResponseText,
    error: ResponseText,
    error_description: ResponseText,
    provider: { type: 'string', maxLength: 100, description: 'ID in the path of the redirect URI' },
  },
  'state',
);
export const SignedInAtProvider = object({
  return_to: { type: 'string', description: 'Path of the console to open' },
});
export const ProviderLogout = object({ url: { type: 'string', description: 'Address of the logout at the provider' } });

export type IdentityProvider = Static<typeof IdentityProvider>;
export type IdentityProviderEdit = Static<typeof IdentityProviderEdit>;
export type NewIdentityProvider = Static<typeof NewIdentityProvider>;
export type SignInProviders = Static<typeof SignInProviders>;
export type ProviderSignIn = Static<typeof ProviderSignIn>;
export type SignedInAtProvider = Static<typeof SignedInAtProvider>;
export type ProviderLogout = Static<typeof ProviderLogout>;
