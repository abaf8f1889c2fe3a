import type { Access, Log } from 'capstan/internal';
import type { LogStore } from '../driver/logs/log-store';
import type { Gateway } from '../gateway/gateway';
import type { Targets } from '../gateway/targets';
import type { Controller } from '../control/controller';
import type { DataMeasurer } from '../deployments/data-measurer';
import type { MoneyMeter } from '../money/money-meter';
import type { HubPuller } from '../deployments/hub-puller';
import type { ServiceStore } from '../store/store';
import type { ProviderSignIn } from '../sign-in/provider-sign-in';
import type { WebhookSender } from '../webhooks/webhook-sender';

/** Dependencies of the handlers. */
export interface ApiContext {
  readonly store: ServiceStore;
  /** Changes to keys. They are in effect in this process when they resolve. */
  readonly access: Pick<
    Access,
    | 'createKey'
    | 'editKey'
    | 'setKeyEnabled'
    | 'rotateKey'
    | 'finishRotation'
    | 'deleteKey'
    | 'setAccessControl'
    | 'propagation'
    | 'sync'
  >;
  /** Absent in a process that runs no replicas. */
  readonly controller?: Pick<Controller, 'reconcile' | 'requireKeys' | 'deleteFiles' | 'onChange' | 'capacityFreed'>;
  /** Logs of versions and containers. Absent in a process that runs none. */
  readonly logs?: Pick<LogStore, 'read' | 'follow'>;
  /** Absent in a process without a gateway. */
  readonly serving?: ServingContext;
  /** Absent in a process without a gateway. */
  readonly money?: Pick<MoneyMeter, 'change' | 'flush' | 'heldOf'>;
  /** Absent in a process that measures no data. */
  readonly measurer?: Pick<DataMeasurer, 'notify' | 'cancel'>;
  /** Absent in a process that downloads no models. */
  readonly puller?: Pick<HubPuller, 'notify' | 'cancel' | 'remove'>;
  /** Folders that may contain data sources. */
  readonly dataRoots?: readonly string[];
  /** Absent in a process that sends no webhooks. */
  readonly webhooks?: Pick<WebhookSender, 'check' | 'attempt'>;
  /** Throws ServiceError `invalid_argument` for the URL of an upstream that may not be used. */
  readonly checkUpstream?: (url: string) => Promise<void>;
  /** Absent in a process without a console. */
  readonly providers?: Pick<ProviderSignIn, 'redirectUri' | 'check' | 'begin' | 'finish' | 'logoutUrl'>;
  readonly log: Log;
  readonly settings: ApiSettings;
  readonly now: () => number;
}

/** The gateway of this process and its routing table. */
export interface ServingContext {
  readonly targets: Targets;
  readonly gateway: Pick<Gateway, 'observe'>;
  /** Returns the absolute URL of a deployment, without a trailing slash and without /v1. */
  readonly urlOf: (slug: string) => string;
  /** The URL of the API over all deployments, without a trailing slash and without /v1. */
  readonly apiUrl: string;
}

/**
 * - `own-host`: only the console has its host name, so deployments neither receive nor set its cookies.
 * - `secret`: browsers share cookies between all ports of a host. A session also needs a secret from the storage of the
 *   console's origin, which includes the port.
 */
export type SessionGuard = 'own-host' | 'secret';

export interface ApiSettings {
  /** Whether browsers reach the service over HTTPS. */
  isSecure: boolean;
  /** Origins of the console in addition to the request's own host, for example that of a proxy. */
  ownOrigins: readonly string[];
  /** Networks of proxies whose `X-Forwarded-For` is trusted. */
  trustedProxies: readonly string[];
  /** What keeps a deployment on another port of the host from using console cookies. */
  sessionGuard: SessionGuard;
  /** The host name that only the console has. Sessions work under no other name. */
  consoleHost?: string;
}
