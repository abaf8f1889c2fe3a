/**
 * Everything that `@capstan/service` uses of this package. Not a public interface: it changes in every release, so both
 * packages must have the same version.
 */
export { Access, type AccessOutcome, describeLocation, type Granted, keyJson, redactKeys } from './access';
export { bearerKey } from './access/check/authorization';
export { callerAddress } from './access/check/caller-address';
export { CidrList, parseAddress } from './access/check/cidr';
export { hashSecret, verifySecret } from './access/check/hash';
export { addressBlock } from './access/check/verifier';
export { AccessError, type AccessErrorCode } from './access/errors';
export { PROPAGATION_CEILING_MS } from './access/feed/gateways';
export { HttpMetrics } from './access/http-metrics';
export type { ApiKey, NewKey } from './access/keys/api-key';
export { endOwner, type KeyEdit, type KeySpec } from './access/keys/changes';
export { isKeyCursor, KEY_SORTS } from './access/keys/pages';
export { type KeyPolicy, readKeyPolicy, writeKeyPolicy } from './access/keys/policy';
export type { KeyFilter } from './access/keys/queries';
export { checkExpiry, checkName, checkNameBesideId, checkText } from './access/keys/values';
export {
  DEFAULT_OWNER,
  deleteInChange,
  type DeploymentRef,
  ensureDeployment,
  ensureOwner,
  findDeployment,
  findDeploymentById,
  type OwnerName,
  type OwnerRef,
  parseOwner,
  setAccessInChange,
} from './access/owners';
export { type Actor, newEvent } from './access/store/audit';
export { type Change, change, type ChangeOptions, lockWriters } from './access/store/change';
export { cannotOpen, connectDatabase, LibsqlDatabase, openDatabase } from './access/store/database';
export type { DatabaseLocation } from './access/store/location';
export { ACCESS, type Component, hasTable, isPostgres, needsMigration, readVersion } from './access/store/migrations';
export { reserveRoom } from './access/store/reserve';
export type { AccessTables, AuditRow, Db, DeploymentRow, MemberRole, OwnerType, Tx } from './access/store/schema';
export { type SerializedError, serveStore } from './access/store/serve-store';
export { type AccessStore, createStore } from './access/store/store';
export { type CreateThread, openThreadedStore, reviveAccessError } from './access/store/threaded-store';
export { randomBase62 } from './base/base62';
export { trimBlanks } from './base/blanks';
export { closeAll, type Closers, runAndClose } from './base/closers';
export { DISK_FULL } from './base/disk-full';
export { ApiError, type ApiErrorCode, renderError } from './base/errors';
export { type IdPrefix, newId } from './base/ids';
export { parseKey } from './base/key-format';
export { createLog, type Log } from './base/log';
export { LOG_LEVELS } from './base/log-levels';
export { Shutdown } from './base/shutdown';
export { toApiError } from './base/to-api-error';
export { UsageError } from './base/usage-error';
export { packageVersion } from './base/version';
export { withTimeout } from './base/with-timeout';
export { anyOf, counted } from './base/words';
export { addFlags, readFlagSources } from './cli/commander-flags';
export { type CommandIo, PROCESS_IO } from './cli/commands/io';
export type { KeysStore } from './cli/commands/keys';
export { parseDuration, parseExpiry } from './cli/durations';
export { flagNamesOf, type FlagValues } from './cli/flag-sources';
export { collect, parseBoolean, parseBytes, parseChoice, parseCount, parsePort, parseSeconds } from './cli/flag-values';
export { deleteProfile, type Profile, profileFile, readProfile, writeProfile } from './cli/profile';
export { type Flag, SERVE_FLAGS } from './cli/serve-flags';
export { renderTable } from './cli/text-table';
export { cookiesNamed, SESSION_COOKIES } from './http/cookies';
export { Cors, isPreflight, OPEN_CORS } from './http/cors';
export { createTransport } from './http/create-transport';
export { RecordedReply } from './http/recorded-reply';
export {
  LOAD_HEADER,
  parseLoad,
  parseUsage,
  type ReplicaUsage,
  SALT_HEADER,
  SECRET_HEADER,
  USAGE_COMMENT,
  USAGE_HEADER,
} from './http/replica-headers';
export { requestIdOf } from './http/request-id';
export { requestLogger } from './http/request-log';
export type { RequestRecord } from './http/routes';
export { SSE_HEADERS, SseStream } from './http/sse';
export {
  DEFAULT_KEEP_ALIVE_MS,
  header,
  type HttpHandler,
  type HttpReply,
  type HttpRequest,
  mediaType,
  type ReplyHeaders,
  type ReplyStream,
  type StreamedRequest,
  type StreamHandler,
  type Transport,
} from './http/transport';
export { packageRoot } from '../ts/package-root';
export { platformFolder, prebuildsOf } from '../ts/platform-package';
