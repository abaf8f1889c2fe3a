/** Access keys, for the HTTP server, the commands and the deployment service. */
export { Access, type AccessLog, type AccessOptions } from './access';
export { type ApiKey, keyJson, type KeyState, type NewKey } from './api-key';
export type { Actor, AuditFilter } from './audit';
export type { ChangeOptions } from './change';
export type { CheckedRequest, CheckTarget } from './check';
export { CidrList } from './cidr';
export { addKeysCommand } from './cli';
export { callerAddress } from './caller-address';
export { AccessError, type AccessErrorCode } from './errors';
export type { Propagation } from './gateways';
export { RevokedError } from './grants';
export type { KeyEdit, KeySpec } from './key-changes';
export { displayKey, redactKeys } from './key-format';
export type { KeyPage, KeyPaging, KeySort } from './key-pages';
export type { KeyPolicy } from './key-policy';
export type { KeyBudget, KeyLimits } from './key-values';
export { type DatabaseLocation, describeLocation, resolveLocation, resolveServeLocation } from './location';
export type { AccessOutcome, DenialCode, Denied, Granted } from './outcome';
export {
  DEFAULT_DEPLOYMENT,
  DEFAULT_OWNER,
  type DeploymentRef,
  type OwnerName,
  type OwnerRef,
  parseOwner,
} from './owners';
export { type AccessStore, openStore } from './store';
