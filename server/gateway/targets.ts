import type { ReplicaAddress } from '../driver/driver';
import type { DeploymentState } from '../service/deployment-state';

/** What the gateway knows of a deployment or a training container; a new object with each change, so that whoever holds one sees no half of it. */
export interface Target {
  /** Or the container's. */
  readonly deploymentId: string;
  /** Nothing is counted for it, and only keys of its owner open it. */
  readonly isContainer?: boolean;
  readonly slug: string;
  /** Of the deployment: what a key's owner is compared with. */
  readonly ownerId: string;
  readonly accessControl: boolean;
  readonly state: DeploymentState;
  /** Those that answer. */
  readonly replicas: readonly TargetReplica[];
  /** For how long a request is held while the first replica comes up. */
  readonly coldStartWaitMs: number;
  readonly cacheScope: 'key' | 'deployment';
}

export interface TargetReplica {
  readonly id: string;
  readonly address: ReplicaAddress;
  readonly secret: string;
  /** The built-in runtime tells its load and its cached blocks, and how many tokens a request used. */
  readonly isBuiltin: boolean;
}

/** Kept by the controller, followed by the gateway. One map lookup per request. */
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
    this.#tell(target.slug, target);
  }

  delete(slug: string): void {
    const target = this.#bySlug.get(slug);
    if (target === undefined) return;
    this.#bySlug.delete(slug);
    this.#byId.delete(target.deploymentId);
    this.#tell(slug, undefined);
  }

  /** Returns what ends it. */
  onChange(listener: (slug: string, target: Target | undefined) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #tell(slug: string, target: Target | undefined): void {
    for (const listener of this.#listeners) listener(slug, target);
  }
}

/** What the gateway asks of the controller. */
export interface GatewayControl {
  /** A request came for a deployment that is scaled to zero; safe to call with every such request. */
  wake(deploymentId: string): void;
  /** Requests that are open, whenever the number changes: the idle timer, and draining, go by it. */
  onOpenRequests(deploymentId: string, replicaId: string, numOpen: number): void;
}
