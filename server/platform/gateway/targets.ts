import type { ReplicaAddress } from '../driver/driver';
import type { UrlAddress } from './upstreams/url-connect';
import type { UpstreamInterface } from './upstreams/interfaces';
import type { DeploymentState } from '../deployments/deployment-state';

/** The gateway's view of a deployment or training container. Immutable: each change creates a new object. */
export interface Target {
  /** Id of the deployment or container. */
  readonly deploymentId: string;
  /** Containers have no usage records, and accept only keys of their owner. */
  readonly isContainer?: boolean;
  readonly slug: string;
  /** Null for containers, which have no model name. */
  readonly name: string | null;
  /** Further names that requests may give as `model`. */
  readonly aliases: readonly string[];
  /** Ids of the deployments that get the requests that this one cannot serve, in order. */
  readonly fallbacks: readonly string[];
  /** How long the first byte may take before the next fallback is tried. null: the limit of the gateway. */
  readonly fallbackAfterMs: number | null;
  /** Wall clock. */
  readonly createdMs: number;
  /** Owner of the deployment. Compared with the owner of the key. */
  readonly ownerId: string;
  readonly accessControl: boolean;
  /**
   * The service keeps the responses, files and batches of requests to the deployment's own URL. Not if a start script
   * serves it: it may have such routes itself.
   */
  readonly hasStorage?: boolean;
  readonly state: DeploymentState;
  /** The ready replicas. */
  readonly replicas: readonly TargetReplica[];
  /** A version that gets a share of the requests. */
  readonly canary?: CanaryShare;
  /** How long a request waits for the first replica. */
  readonly coldStartWaitMs: number;
  readonly cacheScope: 'key' | 'deployment';
}

export interface TargetReplica {
  readonly id: string;
  readonly address: ReplicaAddress | UrlAddress;
  readonly secret: string;
  /** The built-in runtime reports its load, its cached blocks and the token usage of each request. */
  readonly isBuiltin: boolean;
  /** Set if it is an upstream server. */
  readonly upstream?: UpstreamSettings;
}

/** An upstream server that a deployment forwards to. */
export interface UpstreamSettings {
  /** The base URL, without a trailing slash. */
  readonly url: string;
  /** The only model that requests get. null: the one that the request names. */
  readonly model: string | null;
  readonly interfaces: readonly UpstreamInterface[];
}

/** What the `model` of a request names. */
export interface NamedModel {
  target: Target;
  /** Name of a model of the deployment. undefined: the deployment's first model. */
  inner: string | undefined;
}

/** A version that gets a share of a deployment's requests. */
export interface CanaryShare {
  readonly versionId: string;
  /** Percent of the requests. */
  readonly percent: number;
  /** Requests with this header go to the canary. The name is in lower case. */
  readonly header: { readonly name: string; readonly value: string } | null;
  /** Requests with these keys go to the canary. */
  readonly keyIds: readonly string[];
  /** The ready replicas. */
  readonly replicas: readonly TargetReplica[];
}

/** Returns the ready replicas of all versions. */
export function allReplicas({ replicas, canary }: Target): readonly TargetReplica[] {
  return canary === undefined ? replicas : [...replicas, ...canary.replicas];
}

/** Routing table: written by the controller, read by the gateway. One map lookup per request. */
export class Targets {
  readonly #bySlug = new Map<string, Target>();
  readonly #byId = new Map<string, Target>();
  /** By owner and name or alias. An owner's names are unique. */
  readonly #byName = new Map<string, Target>();
  readonly #listeners = new Set<(slug: string, target: Target | undefined) => void>();

  find(slug: string): Target | undefined {
    return this.#bySlug.get(slug);
  }

  findById(deploymentId: string): Target | undefined {
    return this.#byId.get(deploymentId);
  }

  /**
   * Finds the deployment of an owner that `model` names: its name or an alias, alone or followed by `/` and the name of
   * one of its models.
   */
  findByModel(ownerId: string, model: string): NamedModel | undefined {
    const exact = this.#byName.get(nameKey(ownerId, model));
    if (exact !== undefined) return { target: exact, inner: undefined };
    for (let at = model.lastIndexOf('/'); at > 0; at = model.lastIndexOf('/', at - 1)) {
      const target = this.#byName.get(nameKey(ownerId, model.slice(0, at)));
      if (target !== undefined && at + 1 < model.length) return { target, inner: model.slice(at + 1) };
    }
    return undefined;
  }

  all(): readonly Target[] {
    return [...this.#bySlug.values()];
  }

  deployments(): readonly Target[] {
    return this.all().filter(({ isContainer }) => isContainer !== true);
  }

  set(target: Target): void {
    this.#dropNames(this.#bySlug.get(target.slug));
    for (const name of namesOf(target)) this.#byName.set(nameKey(target.ownerId, name), target);
    this.#bySlug.set(target.slug, target);
    this.#byId.set(target.deploymentId, target);
    this.#notify(target.slug, target);
  }

  delete(slug: string): void {
    const target = this.#bySlug.get(slug);
    if (target === undefined) return;
    this.#dropNames(target);
    this.#bySlug.delete(slug);
    this.#byId.delete(target.deploymentId);
    this.#notify(slug, undefined);
  }

  /** Returns a function that removes the listener. */
  onChange(listener: (slug: string, target: Target | undefined) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Keeps a name that another deployment has taken over. */
  #dropNames(old: Target | undefined): void {
    if (old === undefined) return;
    for (const name of namesOf(old)) {
      const key = nameKey(old.ownerId, name);
      if (this.#byName.get(key) === old) this.#byName.delete(key);
    }
  }

  #notify(slug: string, target: Target | undefined): void {
    for (const listener of this.#listeners) listener(slug, target);
  }
}

/** Returns the names that a deployment has as `model`: its name first. */
export function namesOf({ name, aliases }: Pick<Target, 'name' | 'aliases'>): string[] {
  return name === null ? [] : [name, ...aliases];
}

/** Ids of owners have no line feed. */
function nameKey(ownerId: string, name: string): string {
  return `${ownerId}\n${name}`;
}

/** Calls from the gateway to the controller. */
export interface GatewayControl {
  /** A request arrived for a deployment that is scaled to zero. Safe to call for every such request. */
  wake(deploymentId: string): void;
  /** Reports each change of the number of open requests. The idle timer and draining use it. */
  onOpenRequests(deploymentId: string, replicaId: string, numOpen: number): void;
}
