import { CONTAINER_STATES } from '../deployments/container-state';
import { DEPLOYMENT_STATES } from '../deployments/deployment-state';
import { VERSION_STATES } from '../deployments/version-state';

/** All events, by the type of object. */
const EVENTS = {
  key: ['created', 'updated', 'rotated', 'rotation_finished', 'disabled', 'enabled', 'deleted', 'first_used'],
  deployment: [
    'created',
    'updated',
    'access_control',
    'start',
    'stop',
    'restart',
    'scale_to_zero',
    'delete',
    'deleted',
    'activated',
    ...DEPLOYMENT_STATES,
  ],
  version: ['created', 'activated', 'deleted', ...VERSION_STATES],
  rollout: ['replace', 'canary_changed', 'promote', 'promoted', 'roll_back', 'rolled_back'],
  container: ['created', 'updated', 'deleted', 'start', 'stop', ...CONTAINER_STATES],
  image: ['created', 'deleted'],
  source: [
    'created',
    'updated',
    'deleted',
    'pulled',
    'pull_cancelled',
    'pull_finished',
    'pull_failed',
    'token_set',
    'token_removed',
  ],
  token: ['created', 'deleted'],
  member: ['invited', 'invitation_revoked', 'added', 'removed', 'role_changed', 'last_owner_kept'],
  org: ['updated'],
  owner: ['created', 'deleted', 'key_policy', 'quota'],
  account: [
    'created',
    'deleted',
    'role_changed',
    'signed_in',
    'sign_in_failed',
    'email_changed',
    'password_changed',
    'password_reset_link',
    'password_reset',
    'totp_on',
    'totp_off',
    'recovery_codes_renewed',
    'recovery_code_used',
    'provider_linked',
    'provider_ended',
  ],
  provider: ['created', 'updated', 'deleted'],
  price: ['updated', 'deleted', 'currency'],
  budget: ['created', 'updated', 'deleted', 'alert'],
  webhook: ['created', 'updated', 'rotated', 'rotation_finished', 'deleted', 'disabled'],
} as const;

/** Event types such as `deployment.running`. */
export const EVENT_TYPES: readonly string[] = Object.entries(EVENTS).flatMap(([object, names]) =>
  names.map((name) => `${object}.${name}`),
);
/** Patterns for all events of one type of object, such as `deployment.*`. */
export const EVENT_GROUPS: readonly string[] = Object.keys(EVENTS).map((object) => `${object}.*`);

/** @param filters Event types, groups, or `*` for all events. */
export function matchesEvent(filters: readonly string[], type: string): boolean {
  return filters.some((name) => name === '*' || name === type || name === `${type.split('.')[0]}.*`);
}
