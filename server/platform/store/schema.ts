import type { Kysely, Transaction } from 'kysely';
import type { AccessTables, MemberRole } from 'capstan/internal';
import type { Quotas } from '../accounts/quota-columns';
import type { RoutingTables } from '../deployments/routing-schema';
import type { UpstreamTables } from '../upstreams/upstream-schema';
import type { DeploymentTables } from './deployment-schema';
import type { CanaryTables } from '../canary/canary-schema';
import type { SignInTables } from '../sign-in/sign-in-schema';
import type { MoneyTables } from '../money/money-schema';
import type { WebhookTables } from '../webhooks/webhook-schema';

/** The tables of access and of the service. Times are UTC milliseconds, flags are 0 and 1. */
export interface ServiceTables
  extends
    AccessTables,
    CanaryTables,
    DeploymentTables,
    MoneyTables,
    RoutingTables,
    SignInTables,
    UpstreamTables,
    WebhookTables {
  accounts: AccountRow;
  /** Failed sign-ins for the audit. A slot is a user id, or one slot for all unknown addresses. */
  sign_in_failures: { slot: string; since: number; failures: number };
  /** Failed sign-ins that delay the next. A slot is a hash of email address and, for passwords, network address. */
  login_attempts: { slot: string; failures: number; blocked_until: number; updated_at: number };
  sessions: SessionRow;
  bootstrap_links: { token_hash: string; created_at: number; expires_at: number };
  /** Links that set a new password, at most one for each account. */
  password_resets: { token_hash: string; user_id: string; created_at: number; expires_at: number };
  /** Unused recovery codes of the second factor, as keyed digests. */
  recovery_codes: { user_id: string; code_digest: string };
  org_settings: OrgSettingsRow;
  invitations: InvitationRow;
  management_tokens: TokenRow;
  idempotency_keys: IdempotencyRow;
}

/** A user who can sign in. `users.name` is the email address. */
export interface AccountRow extends Quotas {
  user_id: string;
  /** In lower case. */
  email: string;
  display_name: string;
  /** An argon2id string, or `NO_PASSWORD`. */
  password_hash: string;
  locale: 'en' | 'zh-CN';
  theme: 'light' | 'dark' | 'system';
  is_admin: 0 | 1;
  /** Encrypted. Null without a second factor. */
  totp_secret: string | null;
  /** Null until the first code was confirmed. */
  totp_confirmed_at: number | null;
  /** The step of the last code used. Codes of this step and earlier ones are refused. */
  totp_last_step: number | null;
  created_at: number;
  updated_at: number;
  rev: number;
}

export interface SessionRow {
  /** SHA-256 of the cookie's value, which is 256 random bits. */
  id_hash: string;
  user_id: string;
  csrf_hash: string;
  secret_hash: string | null;
  created_ip: string | null;
  user_agent: string | null;
  created_at: number;
  last_seen_at: number;
  idle_expires_at: number;
  expires_at: number;
  revoked_at: number | null;
  /** When the user last entered the password. */
  step_up_at: number | null;
}

export interface OrgSettingsRow extends Quotas {
  org_id: string;
  display_name: string;
  created_at: number;
  updated_at: number;
  rev: number;
}

export interface InvitationRow {
  id: string;
  org_id: string;
  email: string;
  role: MemberRole;
  token_hash: string;
  expires_at: number;
  accepted_at: number | null;
  revoked_at: number | null;
  invited_by: string;
  created_at: number;
}

export interface TokenRow {
  id: string;
  user_id: string;
  name: string;
  /** SHA-256 of 256 random bits. */
  token_hash: string;
  display: string;
  rights: 'read' | 'write';
  expires_at: number | null;
  last_used_at: number | null;
  last_used_ip: string | null;
  created_at: number;
  revoked_at: number | null;
}

export interface IdempotencyRow {
  user_id: string;
  key: string;
  request_hash: string;
  /** Null while the first request runs. */
  status: number | null;
  /** JSON of the response, without secrets. */
  body: string | null;
  /** The `Location` header. */
  location: string | null;
  expires_at: number;
}

export type ServiceDb = Kysely<ServiceTables>;
export type ServiceTx = Transaction<ServiceTables>;
