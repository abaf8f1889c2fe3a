import { AccessError } from './errors';
import { checkText } from './keys/values';
import type { OwnerType } from './store/schema';

/** An owner of keys and deployments, by name. Written as `user:local`. */
export interface OwnerName {
  type: OwnerType;
  name: string;
}

export const DEFAULT_OWNER: OwnerName = { type: 'user', name: 'local' };

/** @throws AccessError unless `text` is `user:NAME` or `org:NAME`. */
export function parseOwner(text: string): OwnerName {
  const [, type, name] = /^(user|org):(.*)$/s.exec(text) ?? [];
  if (type === undefined) throw new AccessError('invalid_argument', 'owner: expected user:NAME or org:NAME');
  return { type: type as OwnerType, name: checkText('owner', name, 100) };
}
