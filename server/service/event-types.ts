import { CONTAINER_STATES } from './container-state';
import { DEPLOYMENT_STATES } from './deployment-state';
import { VERSION_STATES } from './version-state';

/** What happens, and is told: by the object that it happens to. */
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
  rollout: ['replace'],
  container: ['created', 'updated', 'deleted', 'start', 'stop', ...CONTAINER_STATES],
  image: ['created', 'deleted'],
  source: ['created', 'updated', 'deleted'],
  token: ['created', 'deleted'],
  member: ['invited', 'invitation_revoked', 'added', 'removed', 'role_changed'],
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
    'totp_on',
    'totp_off',
  ],
  webhook: ['created', 'updated', 'rotated', 'rotation_finished', 'deleted', 'disabled'],
} as const;

/** `deployment.running` and the like. */
export const EVENT_TYPES: readonly string[] = Object.entries(EVENTS).flatMap(([object, names]) =>
  names.map((name) => `${object}.${name}`),
);
/** Of all events of one object: `deployment.*`. */
export const EVENT_GROUPS: readonly string[] = Object.keys(EVENTS).map((object) => `${object}.*`);

/** @param wanted Types, groups, or `*` for everything. */
export function wantsEvent(wanted: readonly string[], type: string): boolean {
  return wanted.some((name) => name === '*' || name === type || name === `${type.split('.')[0]}.*`);
}
