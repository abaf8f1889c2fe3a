/**
 * What `@capstan/service` uses of this package, except for its commands: see `internal-cli.ts`. Not a public interface:
 * it changes in every release, so both packages must have the same version.
 */
export { parseHubName, showHubName } from '../ts/hub/model-name';
export {
  CapstanError,
  type DownloadProgress,
  type HubKind,
  type ModelInfo,
  modelInfo,
  type PulledModel,
  pullModel,
  type PullOptions,
} from '../ts';
export { ggufModelName } from '../ts/model/gguf/files';
export { findReasoningFormat } from '../ts/text/reasoning';
export { findToolCallFormat } from '../ts/text/tool-calls';
export { makeFolder } from '../ts/make-folder';
export { packageRoot } from '../ts/package-root';
export { platformFolder, prebuildsOf } from '../ts/platform-package';
export {
  Access,
  type AccessOutcome,
  type Denied,
  type Granted,
  type Identity,
  keyJson,
  redactKeys,
  type Reservation,
} from './access';
export { bearerKey, withBearerKey } from './access/check/authorization';
export { callerAddress } from './access/check/caller-address';
export { CidrList, parseAddress } from './access/check/cidr';
export { hashSecret, verifySecret } from './access/check/hash';
export { addressBlock } from './access/check/verifier';
export { AccessError, type AccessErrorCode } from './access/errors';
export { PROPAGATION_CEILING_MS } from './access/feed/gateways';
export { HttpMetrics } from './access/http-metrics';
export type { ApiKey } from './access/keys/api-key';
export { endOwner } from './access/keys/changes';
export { isKeyCursor } from './access/keys/pages';
export { type KeyPolicy, readKeyPolicy, writeKeyPolicy } from './access/keys/policy';
export { KEY_SORTS } from './access/keys/sorts';
export { checkExpiry, checkName, checkNameBesideId, checkText } from './access/keys/values';
export {
  deleteInChange,
  type DeploymentRef,
  ensureDeployment,
  ensureOwner,
  findDeployment,
  findDeploymentById,
  type OwnerRef,
  setAccessInChange,
} from './access/owners';
export { type Actor, newEvent } from './access/store/audit';
export { type Change, change, type ChangeOptions, lockWriters } from './access/store/change';
export { cannotOpen, connectDatabase, LibsqlDatabase, openDatabase } from './access/store/database';
export { describeLocation, type DatabaseLocation } from './access/store/location';
export { ACCESS, type Component, hasTable, isPostgres, needsMigration, readVersion } from './access/store/migrations';
export { reserveSpace } from './access/store/reserve';
export type { AccessTables, AuditRow, Db, DeploymentRow, MemberRole, OwnerType, Tx } from './access/store/schema';
export { type SerializedError, serveStore } from './access/store/serve-store';
export { type AccessStore, createStore } from './access/store/store';
export { type CreateThread, openThreadedStore, reviveAccessError } from './access/store/threaded-store';
export { randomBase62 } from './base/base62';
export { trimBlanks } from './base/blanks';
export { closeAll, type Closers, runAndClose } from './base/closers';
export { DISK_FULL } from './base/disk-full';
export { anthropicModel, anthropicModelPage } from './inference/anthropic/models';
export { threadNotFound } from './inference/anthropic/request';
export { convertRequest, type ConvertedResponse } from './inference/conversion/convert';
export { errorMessageIn } from './inference/conversion/upstream-reader';
export {
  CHAT_PATH,
  type ErrorStyle,
  errorStyleOf,
  INPUT_TOKENS_PATH,
  isAnthropicRequest,
  isModelsPath,
  MODELS_PATH,
  namedEvent,
  RESPONSES_PATH,
} from './base/error-styles';
export { ApiError, type ApiErrorCode, renderError } from './base/errors';
export { type IdPrefix, newId } from './base/ids';
export { parseKey } from './base/key-format';
export { createLog, type Log } from './base/log';
export { Shutdown } from './base/shutdown';
export { toApiError } from './base/to-api-error';
export { openTracing, type TracingOptions } from './base/traces/open-tracing';
export type { RequestTrace, Tracing } from './base/traces/request-trace';
export { UsageError } from './base/usage-error';
export { fitWarning, uncheckedWarning } from './base/model-fit';
export { packageVersion } from './base/version';
export { withTimeout } from './base/with-timeout';
export { counted } from './base/words';
export { SERVE_FLAGS } from './cli/serve-flags';
export { cookiesNamed, SESSION_COOKIES, SIGN_IN_COOKIES } from './http/cookies';
export { Cors, isPreflight, OPEN_CORS } from './http/cors';
export { createTransport } from './http/create-transport';
export { listenProblem } from './http/port';
export { RecordedReply } from './http/recorded-reply';
export {
  BATCH_PRIORITY,
  ALLOWANCE_HEADER,
  ENDED_USAGE_PATH,
  formatAllowance,
  LOAD_HEADER,
  parseAllowance,
  parseLoad,
  parseUsage,
  PRIORITY_HEADER,
  type ReplicaUsage,
  SALT_HEADER,
  SECRET_HEADER,
  USAGE_COMMENT,
  USAGE_HEADER,
} from './http/replica-headers';
export { sseData, SseSplitter } from './http/sse-splitter';
export { requestIdOf } from './http/request-id';
export { requestLogger } from './http/request-log';
export { type RequestContext, type RequestRecord, RouteTable } from './http/routes';
export { sendPieces } from './http/send-pieces';
export { SSE_HEADERS, SseStream } from './http/sse';
export {
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
export type { LineOutcome } from './storage/batches/batch-runner';
export { BatchService, type BatchWork } from './storage/batches/batch-service';
export { type BatchLimits, DEFAULT_BATCH_LIMITS } from './storage/batches/limits';
export { BATCH_ENDPOINTS, errorCode, lineDone, STREAM_REFUSED } from './storage/batches/line-results';
export type { BatchRecord } from './storage/batches/records';
export { batchRoutes } from './storage/batches/routes';
export type { BatchLine } from './storage/batches/running-batch';
export { mayCall, type Reach } from './base/reach';
export { type CompletionRequest, Completions, readCompletionRequest } from './storage/responses/completions';
export { FolderResponseStore } from './storage/responses/folder-store';
export { History, REFERENCE } from './storage/responses/history';
export { isResponseId, newCompletionId, newResponseId } from './storage/responses/ids';
export type { ResponseStore, StoredItem, StoreLimits } from './storage/responses/store';
export { STORED_COMPLETION_ROUTES } from './storage/responses/stored-completions';
export { STORED_RESPONSE_ROUTES, type StoreContext } from './storage/responses/stored-responses';
export { isLight, isLightReply, LIGHT, MAX_DEPTH } from './base/json/light';
export { shapeOf, topLevelValues, withoutTopLevelField, withTopLevelValues } from './base/json/top-level';
