/** Access keys: the interface for the HTTP server, the commands and the deployment service. */
export { Access, type AccessLog, type AccessOptions } from './access';
export { type ApiKey, keyJson, type KeyState, type NewKey } from './keys/api-key';
export type { Actor, AuditFilter } from './store/audit';
export type { ChangeOptions } from './store/change';
export type { CheckedRequest, CheckTarget } from './check/check';
export { AccessError, type AccessErrorCode } from './errors';
export type { Propagation } from './feed/gateways';
export type { KeyEdit, KeySpec } from './keys/changes';
export { redactKeys } from '../base/key-format';
export type { KeyPage, KeyPaging } from './keys/pages';
export type { KeySort } from './keys/sorts';
export type { KeyPolicy } from './keys/policy';
export type { KeyBudget, KeyLimits } from './keys/values';
export { type DatabaseLocation, describeLocation, resolveServeLocation } from './store/location';
export type { AccessOutcome, DenialCode, Denied, Granted, Identity, Reservation } from './check/outcome';
export { type OwnerName, parseOwner } from './owner-names';
export type { DeploymentRef, OwnerRef } from './owners';
export type { AccessStore } from './store/store';
