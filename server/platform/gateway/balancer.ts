import { isDeepStrictEqual } from 'node:util';
import { parseLoad } from 'capstan/internal';
import { preferred, type Prefix, PrefixIndex } from './prefix-index';
import { allReplicas, type GatewayControl, type Target, type TargetReplica, type Targets } from './targets';
import { Upstream, type UpstreamTimes } from './upstream';

/** After a failure, a replica is chosen only when no other replica is available. */
const SUSPECT_MS = 2_000;
/** How long a load report of a replica is used. Afterwards only this gateway's open requests count. */
const REPORT_MS = 5_000;
const TOKENS_PER_BLOCK = 16;
/**
 * A replica may exceed the lightest load by this share plus this many tokens and still be chosen for its prefix cache.
 */
const WINDOW_SHARE = 0.25;
const WINDOW_TOKENS = 4_096;
/** Fixed cost of a request in addition to its prompt. */
const REQUEST_TOKENS = 256;
const BYTES_PER_TOKEN = 4;

/** State of a replica. Kept while it is a target or has open requests. */
interface ReplicaRecord {
  address: TargetReplica['address'];
  upstream: Upstream;
  isTarget: boolean;
  numOpen: number;
  openTokens: number;
  reportedTokens: number;
  reportedMs: number;
  suspectUntilMs: number;
}

export interface Choice {
  replica: TargetReplica;
  upstream: Upstream;
  /** Why this replica was chosen. Logged. */
  reason: 'only' | 'lightest' | 'prefix' | 'hash';
  /** Number of leading prompt pieces that this replica has seen before. */
  matched: number;
  /** Call it once the request has ended. */
  close: () => void;
}

export interface ChoiceOptions {
  /** Empty when the request has no prompt. Called only when several replicas are available. */
  prefix: () => Prefix;
  bodyBytes: number;
  /** Id of a replica that has just failed. */
  except?: string;
}

/** Chooses a replica for each request: the lightly loaded one with the longest cached prefix. Counts open requests. */
export class Balancer {
  readonly #records = new Map<string, ReplicaRecord>();
  readonly #prefixes: PrefixIndex;
  readonly #control: GatewayControl;
  readonly #times: UpstreamTimes;
  readonly #allowsPrivate: boolean;
  readonly #nowMs: () => number;
  readonly #unsubscribe: () => void;

  constructor(
    targets: Targets,
    control: GatewayControl,
    times: UpstreamTimes,
    {
      maxPrefixes,
      allowsPrivate = false,
      nowMs = () => performance.now(),
    }: { maxPrefixes?: number; allowsPrivate?: boolean; nowMs?: () => number } = {},
  ) {
    this.#control = control;
    this.#times = times;
    this.#nowMs = nowMs;
    this.#allowsPrivate = allowsPrivate;
    this.#prefixes = new PrefixIndex(maxPrefixes);
    const previous = new Map(targets.all().map((target) => [target.slug, allReplicas(target)]));
    this.#unsubscribe = targets.onChange((slug, target) => {
      const replicas = target === undefined ? [] : allReplicas(target);
      for (const { id } of previous.get(slug) ?? []) {
        if (!replicas.some((replica) => replica.id === id)) this.#removeTarget(id);
      }
      if (target === undefined) previous.delete(slug);
      else previous.set(slug, replicas);
    });
  }

  /** Returns undefined when no replica is available, or only the one that has just failed. */
  choose(target: Target, { prefix, bodyBytes, except }: ChoiceOptions): Choice | undefined {
    const { replicas } = target;
    // Fast path: most deployments have one replica.
    if (replicas.length === 1)
      return replicas[0].id === except ? undefined : this.#open(target, replicas[0], bodyBytes, 'only', 0);
    const candidates = this.#candidates(target, except);
    if (candidates.length === 0) return undefined;
    const prompt = prefix();
    const light = this.#lightest(candidates);
    const choice =
      prompt.length === 0
        ? this.#open(target, light[0], bodyBytes, 'lightest', 0)
        : this.#byPrefix(target, light, prompt, bodyBytes);
    if (prompt.length > 0) this.#prefixes.add(prompt, choice.replica.id);
    return choice;
  }

  /** Avoids a replica for a while because it could not be reached or reset the connection. */
  suspect(replicaId: string): void {
    const record = this.#records.get(replicaId);
    if (record !== undefined) record.suspectUntilMs = this.#nowMs() + SUSPECT_MS;
  }

  /** Records the load that a replica reports in its load header. */
  report(replicaId: string, text: string): void {
    const record = this.#records.get(replicaId);
    const load = parseLoad(text);
    if (record === undefined || load === undefined) return;
    record.reportedTokens = load.queuedPromptTokens + Math.max(0, load.numBlocks - load.freeBlocks) * TOKENS_PER_BLOCK;
    record.reportedMs = this.#nowMs();
  }

  numOpen(replicaId: string): number {
    return this.#records.get(replicaId)?.numOpen ?? 0;
  }

  close(): void {
    this.#unsubscribe();
    for (const { upstream } of this.#records.values()) upstream.close();
    this.#records.clear();
  }

  #candidates(target: Target, except: string | undefined): readonly TargetReplica[] {
    const others = target.replicas.filter(({ id }) => id !== except);
    const nowMs = this.#nowMs();
    const trusted = others.filter(({ id }) => (this.#records.get(id)?.suspectUntilMs ?? 0) <= nowMs);
    return trusted.length > 0 ? trusted : others;
  }

  /** Returns the replicas within the load window of the lightest, lightest first. Ties: fewer open requests first. */
  #lightest(candidates: readonly TargetReplica[]): readonly TargetReplica[] {
    const loads = candidates.map((replica) => ({
      replica,
      tokens: this.#load(replica.id),
      numOpen: this.numOpen(replica.id),
    }));
    loads.sort((a, b) => a.tokens - b.tokens || a.numOpen - b.numOpen);
    const most = loads[0].tokens * (1 + WINDOW_SHARE) + WINDOW_TOKENS;
    return loads.filter(({ tokens }) => tokens <= most).map(({ replica }) => replica);
  }

  /**
   * NOTE: an unseen prompt goes to a light replica by hash, not to the replica with the fewest prefixes: it may be the
   * busiest.
   */
  #byPrefix(target: Target, light: readonly TargetReplica[], prompt: Prefix, bodyBytes: number): Choice {
    const matches = this.#prefixes.match(prompt);
    let best: TargetReplica | undefined;
    let longest = 0;
    for (const replica of light) {
      const length = matches.get(replica.id) ?? 0;
      if (length > longest) [best, longest] = [replica, length];
    }
    return best === undefined
      ? this.#open(target, preferred(prompt, light), bodyBytes, 'hash', 0)
      : this.#open(target, best, bodyBytes, 'prefix', longest);
  }

  #load(replicaId: string): number {
    const record = this.#records.get(replicaId);
    if (record === undefined) return 0;
    const isFresh = this.#nowMs() - record.reportedMs < REPORT_MS;
    return Math.max(record.openTokens, isFresh ? record.reportedTokens : 0);
  }

  #open(target: Target, replica: TargetReplica, bodyBytes: number, reason: Choice['reason'], matched: number): Choice {
    const record = this.#record(replica);
    const tokens = REQUEST_TOKENS + Math.ceil(bodyBytes / BYTES_PER_TOKEN);
    record.numOpen++;
    record.openTokens += tokens;
    this.#control.onOpenRequests(target.deploymentId, replica.id, record.numOpen);
    let isOpen = true;
    const close = () => {
      if (!isOpen) return;
      isOpen = false;
      record.numOpen--;
      record.openTokens -= tokens;
      this.#control.onOpenRequests(target.deploymentId, replica.id, record.numOpen);
      this.#dropUnused(replica.id, record);
    };
    return { replica, upstream: record.upstream, reason, matched, close };
  }

  #record(replica: TargetReplica): ReplicaRecord {
    const known = this.#records.get(replica.id);
    if (known !== undefined) return this.#refresh(known, replica);
    const record: ReplicaRecord = {
      address: replica.address,
      upstream: new Upstream(replica.address, this.#times, this.#allowsPrivate),
      isTarget: true,
      numOpen: 0,
      openTokens: 0,
      reportedTokens: 0,
      reportedMs: -Infinity,
      suspectUntilMs: 0,
    };
    this.#records.set(replica.id, record);
    return record;
  }

  /** The replica may have been restarted at another address. */
  #refresh(record: ReplicaRecord, { address }: TargetReplica): ReplicaRecord {
    record.isTarget = true;
    if (record.address === address || isDeepStrictEqual(record.address, address)) return record;
    record.upstream.close();
    record.address = address;
    record.upstream = new Upstream(address, this.#times, this.#allowsPrivate);
    return record;
  }

  /** The replica is draining: its open requests continue and stay counted. */
  #removeTarget(replicaId: string): void {
    this.#prefixes.forget(replicaId);
    const record = this.#records.get(replicaId);
    if (record === undefined) return;
    record.isTarget = false;
    this.#dropUnused(replicaId, record);
  }

  #dropUnused(replicaId: string, record: ReplicaRecord): void {
    if (record.isTarget || record.numOpen > 0) return;
    record.upstream.close();
    if (this.#records.get(replicaId) === record) this.#records.delete(replicaId);
  }
}
