import { type AccessStore, createStore, reserveSpace } from 'capstan/internal';
import { loopClock } from '../control/clock';
import { openServiceDatabase } from './change';
import { seedImages } from '../deployments/catalog';
import { NO_MACHINE } from '../deployments/machine';
import { SecretBox } from '../accounts/secret-box';
import type { ServiceStoreOptions, StoreContext } from './store-context';
import { type AccountStore, accountMethods } from './store-accounts';
import { type ControlStore, controlMethods, type DeploymentStore, deploymentMethods } from './store-deployments';
import { canaryMethods, type CanaryStore } from './store-canaries';
import { type OwnerStore, ownerMethods } from './store-owners';
import { moneyMethods, type MoneyStore } from './store-money';
import { type SignInStore, signInMethods } from './store-sign-in';
import { type WebhookStore, webhookMethods } from './store-webhooks';
import { type UsageStore, usageMethods } from '../usage/usage-store';

export type { ServiceStoreOptions } from './store-context';

/**
 * The service's database. Arguments and results are structured-cloneable. A change is durable when its promise
 * resolves.
 */
export type ServiceStore = AccessStore &
  AccountStore &
  DeploymentStore &
  ControlStore &
  UsageStore &
  SignInStore &
  OwnerStore &
  CanaryStore &
  WebhookStore &
  MoneyStore;

/** Opens the store in this thread, for commands and tests. */
export async function openServiceStore(
  options: ServiceStoreOptions,
  now: () => number = Date.now,
  loopNow: () => number = options.loopOffsetMs === undefined ? now : loopClock(options.loopOffsetMs),
): Promise<ServiceStore> {
  const db = await openServiceDatabase(options.location);
  const context: StoreContext = {
    db,
    now,
    loopNow,
    options: { ...options, machine: { ...(options.machine ?? NO_MACHINE) } },
    box: new SecretBox(options.secretKey),
  };
  if (options.machine !== undefined) await reserveSpace(db, options.reserveBytes);
  if (options.version !== undefined) await seedImages(db, options.version, now());
  return {
    ...createStore(db, now),
    ...accountMethods(context),
    ...deploymentMethods(context),
    ...controlMethods(context),
    ...usageMethods(context),
    ...webhookMethods(context),
    ...signInMethods(context),
    ...ownerMethods(context),
    ...canaryMethods(context),
    ...moneyMethods(context),
  };
}
