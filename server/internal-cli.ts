/**
 * What the commands of `@capstan/service` use of this package, without the code of the database: they talk to a running
 * service. Not a public interface, as `internal.ts`.
 */
export { parseHubName } from '../ts/hub/model-name';
export { CidrList } from './access/check/cidr';
export { AccessError } from './access/errors';
export type { ApiKey, NewKey } from './access/keys/api-key';
export type { KeyEdit, KeySpec } from './access/keys/changes';
export type { KeyFilter } from './access/keys/queries';
export { DEFAULT_OWNER, type OwnerName, parseOwner } from './access/owner-names';
export { DISK_FULL } from './base/disk-full';
export { LOG_LEVELS } from './base/log-levels';
export { UsageError } from './base/usage-error';
export { packageVersion } from './base/version';
export { fitWarning, uncheckedWarning } from './base/model-fit';
export { anyOf, counted } from './base/words';
export { addFlags, readFlagSources } from './cli/commander-flags';
export { type CommandIo, PROCESS_IO } from './cli/commands/io';
export type { KeysStore } from './cli/commands/keys';
export { parseDuration, parseExpiry } from './cli/durations';
export { flagNamesOf, type FlagValues } from './cli/flag-sources';
export {
  collect,
  parseBoolean,
  parseBytes,
  parseChoice,
  parseCount,
  parseInteger,
  parsePort,
  parseSeconds,
} from './cli/flag-values';
export { SHARED_FLAGS } from './cli/shared-flags';
export { deleteProfile, type Profile, profileFile, readProfile, writeProfile } from './cli/profile';
export type { Flag } from './cli/serve-flags';
export { renderTable } from './cli/text-table';
export { DEFAULT_KEEP_ALIVE_MS } from './http/transport';
export { type BatchLimits, DEFAULT_BATCH_LIMITS } from './storage/batches/limits';
export { DEFAULT_RESPONSE_LIMITS, type StoreLimits } from './storage/responses/store';
