import type { ReplicaAddress } from '../driver/driver';
import type { DeploymentState } from '../deployments/deployment-state';

/** The gateway's view of a deployment or training container. Immutable: each change creates a new object. */
export interface Target {
  /** Id of the deployment or container. */
  readonly deploymentId: string;
  /** Containers have no usage records, and accept only keys of their owner. */
  readonly isContainer?: boolean;
  readonly slug: string;
  /** Owner of the deployment. Compared with the owner of the key. */
  readonly ownerId: string;
  readonly accessControl: boolean;
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
  readonly address: ReplicaAddress;
  readonly secret: string;
  /** The built-in runtime reports its load, its cached blocks and the token usage of each request. */
  readonly isBuiltin: boolean;
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
  readonly #listeners = new Set<(slug: string, target: Target | undefined) => void>();

  find(slug: string): Target | undefined {
    return this.#bySlug.get(slug);
  }

  findById(deploymentId: string): Target | undefined {
    return this.#byId.get(deploymentId);
  }

  all(): readonly Target[] {
    return [...this.#bySlug.values()];
  }

  deployments(): readonly Target[] {
    return this.all().filter(({ isContainer }) => isContainer !== true);
  }

  set(target: Target): void {
    this.#bySlug.set(target.slug, target);
    this.#byId.set(target.deploymentId, target);
    this.#notify(target.slug, target);
  }

  delete(slug: string): void {
    const target = this.#bySlug.get(slug);
    if (target === undefined) return;
    this.#bySlug.delete(slug);
    this.#byId.delete(target.deploymentId);
    this.#notify(slug, undefined);
  }

  /** Returns a function that removes the listener. */
  onChange(listener: (slug: string, target: Target | undefined) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #notify(slug: string, target: Target | undefined): void {
    for (const listener of this.#listeners) listener(slug, target);
  }
}

/** Calls from the gateway to the controller. */
export interface GatewayControl {
  /** A request arrived for a deployment that is scaled to zero. Safe to call for every such request. */
  wake(deploymentId: string): void;
  /** Reports each change of the number of open requests. The idle timer and draining use it. */
  onOpenRequests(deploymentId: string, replicaId: string, numOpen: number): void;
}
