import type { Access } from '../access';
import type { LogStore } from '../driver/logs/log-store';
import type { Gateway } from '../gateway/gateway';
import type { Targets } from '../gateway/targets';
import type { Log } from '../log';
import type { Controller } from '../service/controller';
import type { DataMeasurer } from '../service/data-measurer';
import type { ServiceStore } from '../service/store';
import type { WebhookSender } from '../webhooks/webhook-sender';

/** What handlers work with. */
export interface ApiContext {
  readonly store: ServiceStore;
  /** Keys: changes that apply here before they are answered. */
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
  /** Makes what runs follow what is wanted; absent where this process runs nothing. */
  readonly controller?: Pick<Controller, 'changed' | 'forget' | 'onChange' | 'roomMade'>;
  /** Of versions and containers; absent where this process runs none. */
  readonly logs?: Pick<LogStore, 'read' | 'follow'>;
  /** Absent where this process has no gateway. */
  readonly serving?: ServingContext;
  /** Absent where this process measures no data. */
  readonly measurer?: Pick<DataMeasurer, 'poke' | 'cancel'>;
  /** Absent where this process sends none. */
  readonly webhooks?: Pick<WebhookSender, 'check' | 'attempt'>;
  readonly log: Log;
  readonly settings: ApiSettings;
  readonly now: () => number;
}

/** The gateway of this process, and what it goes by. */
export interface ServingContext {
  readonly targets: Targets;
  readonly gateway: Pick<Gateway, 'observe'>;
  /** Of a deployment: absolute, without a trailing slash and without /v1. */
  readonly urlOf: (slug: string) => string;
}

export interface ApiSettings {
  /** Whether browsers see this service by HTTPS. */
  isSecure: boolean;
  /** Origins that are our own pages beside the one that the request itself names, such as that of a proxy. */
  ownOrigins: readonly string[];
  /** Networks of proxies whose `X-Forwarded-For` names the caller. */
  trustedProxies: readonly string[];
}
