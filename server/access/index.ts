/** Access keys, for the HTTP server, the commands and the deployment service. */
export { Access, type AccessLog, type AccessOptions } from './access';
export { type ApiKey, keyJson, type KeyState, type NewKey } from './api-key';
export type { CheckedRequest, CheckTarget } from './check';
export { addKeysCommand } from './cli';
export { AccessError, type AccessErrorCode } from './errors';
export type { ChangeOptions, KeyEdit, KeySpec } from './key-changes';
export { displayKey, redactKeys } from './key-format';
export type { KeyLimits } from './key-values';
export { type DatabaseLocation, describeLocation, resolveLocation, resolveServeLocation } from './location';
export type { AccessOutcome, Denied, Granted } from './outcome';
export { DEFAULT_DEPLOYMENT, DEFAULT_OWNER, type DeploymentRef, type OwnerName, type OwnerRef, parseOwner } from './owners';
export { type AccessStore, openStore } from './store';
