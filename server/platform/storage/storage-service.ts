import { join } from 'node:path';
import {
  type Access,
  ApiError,
  type BatchLimits,
  batchRoutes,
  BatchService,
  callerAddress,
  CHAT_PATH,
  CidrList,
  FolderResponseStore,
  type HttpReply,
  INPUT_TOKENS_PATH,
  type Log,
  type RequestContext,
  RouteTable,
  type StoreContext,
  STORED_COMPLETION_ROUTES,
  STORED_RESPONSE_ROUTES,
  type StoreLimits,
  type StreamedRequest,
} from 'capstan/internal';
import type { Gateway } from '../gateway/gateway';
import type { KeptRequest, KeptResponse, OwnerRequest, OwnerStorage } from '../gateway/owner-storage';
import type { Targets } from '../gateway/targets';
import { CompletionKeeper } from './completion-keeper';
import { GatewayLines } from './gateway-lines';
import { ResponseKeeper } from './response-keeper';
import { UploadLimits } from './upload-limits';

/** The share of all files and open batches that one owner may have. */
const OWNER_SHARE = 0.25;
/** How often the service looks for owners that were deleted. */
const OWNERS_MS = 5_000;
/** How often expired responses are deleted, and what a crash left of deleted owners. */
const SWEEP_MS = 3_600_000;
const DEFAULT_LINES_PER_REPLICA = 16;

export interface StorageOptions {
  /** The data directory of the service. */
  dataDir: string;
  batches: BatchLimits;
  /** 0 bytes: no responses are kept. */
  storedResponses: StoreLimits;
  trustedProxies: readonly string[];
  access: Pick<Access, 'identifyById' | 'stats'>;
  /** Returns the ids of all owners that exist. */
  readOwners: () => Promise<readonly string[]>;
  log: Log;
  /** How often to look for deleted owners. */
  sweepMs?: number;
  /** A client that reads nothing of a file for this long is disconnected. */
  slowClientTimeoutMs?: number;
}

/** Paths that look like those of a stored object, but are served by models. */
const MODEL_PATHS: ReadonlySet<string> = new Set([`${CHAT_PATH}/render`, INPUT_TOKENS_PATH, '/v1/responses/compact']);

type Context = RequestContext & StoreContext & Pick<OwnerRequest, 'deploymentId' | 'reach'>;

/**
 * Keeps responses, chat completions, files and batches in the data directory of the service, by the owner of the key.
 * Deletes those of deleted owners.
 */
export class StorageService implements OwnerStorage {
  readonly #options: StorageOptions;
  readonly #responses: FolderResponseStore | undefined;
  readonly #keeper: ResponseKeeper | undefined;
  readonly #completionKeeper: CompletionKeeper | undefined;
  readonly #batches: BatchService;
  readonly #routes: RouteTable<Context>;
  readonly #uploads = new UploadLimits();
  readonly #trustedProxies: CidrList | undefined;
  #sweeping: NodeJS.Timeout | undefined;
  #sweep: Promise<void> | undefined;
  #closing: Promise<void> | undefined;
  /** The revision of the database at the last sweep that left nothing. */
  #sweptRev = -1;
  #sweptMs = 0;

  private constructor(options: StorageOptions, responses: FolderResponseStore | undefined, batches: BatchService) {
    const { log, trustedProxies, slowClientTimeoutMs } = options;
    this.#options = options;
    this.#responses = responses;
    this.#keeper = responses === undefined ? undefined : new ResponseKeeper(responses, log);
    this.#completionKeeper = responses === undefined ? undefined : new CompletionKeeper(responses, log);
    this.#batches = batches;
    this.#trustedProxies =
      trustedProxies.length === 0 ? undefined : CidrList.parse('--trusted-proxy', [...trustedProxies]);
    this.#routes = new RouteTable<Context>([
      ...STORED_RESPONSE_ROUTES,
      ...STORED_COMPLETION_ROUTES,
      ...batchRoutes<Context>(({ deploymentId, reach }) => ({
        service: batches,
        reach,
        deploymentId,
        slowClientTimeoutMs,
      })),
    ]);
  }

  /** Rejects if the folders cannot be read and written. */
  static async open(options: StorageOptions): Promise<StorageService> {
    const { dataDir, batches: limits, storedResponses, log } = options;
    const responses =
      storedResponses.maxBytes === 0
        ? undefined
        : await FolderResponseStore.open(join(dataDir, 'responses'), storedResponses);
    const batches = await BatchService.open({
      ...limits,
      dataDir,
      log,
      ownerShare: OWNER_SHARE,
      // A batch whose deployment is stopped must not keep those of others from running.
      maxRunningBatches: limits.maxOpenBatches,
    });
    if (batches === undefined)
      throw new Error(`another server keeps its files and batches in ${dataDir}: each needs its own data directory`);
    return new StorageService(options, responses, batches);
  }

  /** Starts to run batches, and to delete what has expired or lost its owner. */
  start(gateway: Pick<Gateway, 'observe'>, targets: Targets): void {
    const { access, batches, sweepMs = OWNERS_MS } = this.#options;
    const { concurrency = DEFAULT_LINES_PER_REPLICA } = batches;
    this.#batches.serve(new GatewayLines({ gateway, targets, access, linesPerReplica: concurrency }));
    this.#sweeping = setInterval(() => this.#sweepOnce(), sweepMs).unref();
    this.#sweepOnce();
  }

  serves(method: string, path: string): boolean {
    const isForModel = MODEL_PATHS.has(path) || (method === 'POST' && path === CHAT_PATH);
    return !isForModel && this.#routes.at(path).length > 0;
  }

  async handle(owner: OwnerRequest, request: StreamedRequest, reply: HttpReply): Promise<void> {
    const { requestId, keyId, ownerId, deploymentId, reach } = owner;
    const routes = this.#routes.at(request.path);
    const wanted = request.method === 'HEAD' ? 'GET' : request.method;
    const route = routes.find(({ method }) => method === wanted);
    if (route === undefined) {
      const ofModel = request.path === CHAT_PATH ? ['POST'] : [];
      const allowed = [...routes.map(({ method }) => method), ...ofModel].join(', ');
      throw new ApiError('method_not_allowed', `This path does not allow the method: expected ${allowed}`, {
        headers: { Allow: allowed },
      });
    }
    const context: Context = {
      requestId,
      identity: { keyId, ownerId, cacheSalt: '', done: () => {} },
      signal: request.signal,
      responses: this.#responses,
      deploymentId,
      reach,
    };
    const remoteAddress = callerAddress(request.remoteAddress, request.headers, this.#trustedProxies);
    await this.#uploads.within(ownerId, { ...request, remoteAddress }, async (checked) =>
      route.handle(context, checked, reply),
    );
  }

  async keepResponse(request: KeptRequest, body: Buffer, reply: HttpReply): Promise<KeptResponse | undefined> {
    const keeper = request.kind === 'completion' ? this.#completionKeeper : this.#keeper;
    return keeper?.prepare(request, body, reply);
  }

  /** Ends the lines in progress, which run again after the next start. */
  close(): Promise<void> {
    clearInterval(this.#sweeping);
    return (this.#closing ??= Promise.resolve(this.#sweep).then(() => this.#batches.close()));
  }

  /** Does nothing while the last sweep runs, and while nothing can have changed. */
  #sweepOnce(): void {
    const { access, log } = this.#options;
    const rev = access.stats().appliedRev;
    const isDue = rev !== this.#sweptRev || Date.now() - this.#sweptMs > SWEEP_MS;
    if (this.#sweep !== undefined || !isDue) return;
    this.#sweep = this.#deleteOrphans()
      .then((isDone) => {
        if (isDone) this.#sweptRev = rev;
        this.#sweptMs = Date.now();
      })
      .catch((error: unknown) => log.warn({ err: error }, 'cannot delete the files of deleted owners, retrying'))
      .finally(() => {
        this.#sweep = undefined;
      });
  }

  /** Returns whether nothing of deleted owners is left. */
  async #deleteOrphans(): Promise<boolean> {
    const { readOwners, log } = this.#options;
    // Read before the owners, so that those of a new owner are not deleted.
    const known = this.#batches.owners();
    await this.#responses?.dropExpired();
    await this.#responses?.keepOwners(readOwners);
    const owners = new Set(await readOwners());
    let isDone = true;
    for (const ownerId of known) {
      if (owners.has(ownerId)) continue;
      const isDeleted = await this.#batches.deleteOwner(ownerId).catch((error: unknown) => {
        log.warn({ err: error, ownerId }, 'cannot delete the files of a deleted owner, retrying');
        return false;
      });
      isDone &&= isDeleted;
    }
    return isDone;
  }
}
