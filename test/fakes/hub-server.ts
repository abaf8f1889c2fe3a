/**
 * A local hub that speaks the HTTP interface of huggingface.co: the list of a revision, files behind redirects to a
 * storage host, ranges, tokens and errors. It records what a client does wrong.
 */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { brotliCompressSync, gzipSync } from 'node:zlib';

/** Something that goes wrong once, for one request of a file. */
export interface Fault {
  /** Cuts the connection after this many bytes of the body. */
  cutAfter?: number;
  /** Answers with an error. */
  status?: number;
  headers?: Record<string, string>;
  /** Changes a byte. */
  isCorrupt?: boolean;
  /** Answers 200 with the complete file. */
  ignoresRange?: boolean;
  /** Sends this many bytes too many. */
  extraBytes?: number;
  /** Compresses the body, although no client asks for it. */
  encoding?: 'gzip' | 'br';
  /** Sends the first half of the body, then waits for this. */
  hold?: Promise<void>;
}

export interface FakeRepository {
  commit: string;
  /** Further names of the commit, `main` included. */
  revisions: string[];
  files: Record<string, Buffer>;
  /** Answers with 403 unless the token is right. */
  isGated?: boolean;
  /** Answers with 401 and RepoNotFound unless the token is right. */
  isPrivate?: boolean;
  /** A mirror that keeps files only: no sizes and hashes in the list, no headers of the hub, and another ETag. */
  hasHashes?: boolean;
  /** Changes the reply of the list, for malformed ones. */
  patchList?: (reply: any) => unknown;
}

export interface SeenRequest {
  host: 'hub' | 'storage';
  method: string;
  path: string;
  range: string | undefined;
}

export const TOKEN = 'hf_testtoken0123456789';
/** Larger files are in the storage. */
const LFS_BYTES = 4096;

export function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex');
}

export function gitSha1(bytes: Buffer): string {
  return createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex');
}

export function etagOf(bytes: Buffer): string {
  return isLfs(bytes) ? sha256(bytes) : gitSha1(bytes);
}

function isLfs(bytes: Buffer): boolean {
  return bytes.length > LFS_BYTES;
}

export class HubServer {
  readonly repositories = new Map<string, FakeRepository>();
  readonly requests: SeenRequest[] = [];
  /** What a client must not do. Tests expect it to be empty. */
  readonly violations: string[] = [];
  /** Called before each response. */
  onRequest: (request: SeenRequest) => void = () => {};
  readonly #faults = new Map<string, Fault[]>();
  readonly #hub: Server;
  readonly #storage: Server;

  constructor() {
    this.#hub = createServer((request, response) => this.#serve('hub', request, response));
    this.#storage = createServer((request, response) => this.#serve('storage', request, response));
  }

  async start(): Promise<void> {
    for (const server of [this.#hub, this.#storage]) await once(server.listen(0, '127.0.0.1'), 'listening');
  }

  async close(): Promise<void> {
    for (const server of [this.#hub, this.#storage]) {
      server.closeAllConnections();
      await new Promise((done) => server.close(done));
    }
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#hub.address() as AddressInfo).port}`;
  }

  /** Another host, as the storage of the hub is one. */
  get storageUrl(): string {
    return `http://localhost:${(this.#storage.address() as AddressInfo).port}`;
  }

  add(name: string, files: Record<string, Buffer | string>, more: Partial<FakeRepository> = {}): FakeRepository {
    const buffers = Object.fromEntries(Object.entries(files).map(([path, content]) => [path, Buffer.from(content)]));
    const text = Object.entries(buffers).map(([path, bytes]) => path + sha256(bytes));
    const commit = createHash('sha1').update(text.join()).digest('hex');
    const repository = { commit, revisions: ['main'], files: buffers, ...more };
    this.repositories.set(name, repository);
    return repository;
  }

  /** Adds faults for the next requests of a file's content, or of the list. */
  fail(file: string, ...faults: Fault[]): void {
    this.#faults.set(file, [...(this.#faults.get(file) ?? []), ...faults]);
  }

  /** Paths of the requests for content. */
  downloads(): string[] {
    return this.requests
      .filter(({ host, path }) => host === 'storage' || path.includes('/resolve/'))
      .map(({ path }) => path);
  }

  #serve(host: SeenRequest['host'], request: IncomingMessage, response: ServerResponse): void {
    const url = new URL(request.url!, 'http://x');
    const { range, authorization } = request.headers;
    const seen = { host, method: request.method!, path: decodeURIComponent(url.pathname), range };
    this.requests.push(seen);
    this.onRequest(seen);
    if (request.headers['user-agent'] === undefined) this.violations.push(`no user agent: ${seen.path}`);
    if (range !== undefined && !/^bytes=(?:[1-9]\d*-|0-\d+)$/.test(range)) this.violations.push(`range ${range}`);
    if (host === 'storage') {
      if (authorization !== undefined) this.violations.push('a token was sent to the storage host');
      if (url.searchParams.get('signature') !== 'a secret') this.violations.push('the signature of a link was lost');
      return this.#serveStored(seen, response);
    }
    if (authorization !== undefined && authorization !== `Bearer ${TOKEN}`) this.violations.push('a wrong token');
    const isKnown = authorization === `Bearer ${TOKEN}`;
    const list = /^\/api\/models\/([^/]+\/[^/]+)\/(?:revision|tree)\/([^/]+)$/.exec(url.pathname);
    const file = /^\/([^/]+\/[^/]+)\/resolve\/([^/]+)\/(.+)$/.exec(url.pathname);
    const name = (list ?? file)?.[1] ?? '';
    const repository = this.repositories.get(name);
    if (repository === undefined || (repository.isPrivate && !isKnown))
      return refuse(response, 401, 'RepoNotFound', 'Repository not found');
    const revision = decodeURIComponent((list ?? file)![2]);
    if (revision !== repository.commit && !repository.revisions.includes(revision))
      return refuse(response, 404, 'RevisionNotFound', `Invalid rev id: ${revision}`);
    if (list !== null && url.pathname.includes('/tree/')) return this.#serveTree(repository, response);
    if (list !== null) return this.#serveList(name, repository, response);
    if (repository.isGated && !isKnown) return refuse(response, 403, 'GatedRepo', 'Access is restricted');
    this.#serveFile(seen, repository, decodeURIComponent(file![3]), response);
  }

  #serveList(name: string, repository: FakeRepository, response: ServerResponse): void {
    const fault = this.#faults.get('list')?.shift();
    if (fault?.status !== undefined) return void response.writeHead(fault.status, fault.headers).end();
    const siblings = Object.entries(repository.files).map(([path, bytes]) => ({
      rfilename: path,
      ...(repository.hasHashes !== false && { size: bytes.length, blobId: gitSha1(bytes) }),
      ...(repository.hasHashes !== false &&
        isLfs(bytes) && { lfs: { sha256: sha256(bytes), size: bytes.length, pointerSize: 134 } }),
    }));
    const reply = { id: name, sha: repository.commit, siblings, gated: repository.isGated ?? false };
    response.setHeader('Content-Type', 'application/json');
    const text = JSON.stringify(repository.patchList === undefined ? reply : repository.patchList(reply));
    response.end(encoded(Buffer.from(text), fault?.encoding, response));
  }

  /** What huggingface_hub asks for. */
  #serveTree(repository: FakeRepository, response: ServerResponse): void {
    const entries = Object.entries(repository.files).map(([path, bytes]) => ({
      type: 'file',
      path,
      size: bytes.length,
      oid: gitSha1(bytes),
      ...(isLfs(bytes) && { lfs: { oid: sha256(bytes), size: bytes.length, pointerSize: 134 } }),
    }));
    response.setHeader('Content-Type', 'application/json');
    response.end(JSON.stringify(entries));
  }

  #serveFile(seen: SeenRequest, repository: FakeRepository, path: string, response: ServerResponse): void {
    const bytes = repository.files[path];
    if (bytes === undefined) return refuse(response, 404, 'EntryNotFound', 'Entry not found');
    if (repository.hasHashes === false) {
      response.setHeader('ETag', `"${createHash('sha1').update(bytes).digest('hex')}"`);
      return this.#send(path, bytes, seen.range, response);
    }
    response.setHeader('X-Repo-Commit', repository.commit);
    if (!isLfs(bytes)) {
      response.setHeader('ETag', `"${gitSha1(bytes)}"`);
      return this.#send(path, bytes, seen.range, response);
    }
    response.setHeader('X-Linked-Etag', `"${sha256(bytes)}"`);
    response.setHeader('X-Linked-Size', bytes.length);
    const location = `${this.storageUrl}/${sha256(bytes)}/${encodeURIComponent(path)}?signature=a+secret`;
    response.writeHead(302, { Location: location }).end();
  }

  #serveStored(seen: SeenRequest, response: ServerResponse): void {
    const [, hash, path] = seen.path.split('/');
    const all = [...this.repositories.values()].flatMap(({ files }) => Object.values(files));
    const bytes = all.find((content) => sha256(content) === hash);
    if (bytes === undefined) return void response.writeHead(404).end();
    response.setHeader('ETag', '"the storage has another one"');
    this.#send(path, bytes, seen.range, response);
  }

  #send(path: string, bytes: Buffer, range: string | undefined, response: ServerResponse): void {
    const fault = this.#faults.get(path)?.shift() ?? {};
    if (fault.status !== undefined) return void response.writeHead(fault.status, fault.headers).end('no');
    const [, first, last] = (fault.ignoresRange !== true && /^bytes=(\d+)-(\d*)$/.exec(range ?? '')) || [];
    const start = Number(first ?? 0);
    const end = Math.min(last ? Number(last) + 1 : bytes.length, bytes.length);
    if (start >= bytes.length && bytes.length > 0)
      return void response.writeHead(416, { 'Content-Range': `bytes */${bytes.length}` }).end();
    let body: Buffer = Buffer.concat([bytes.subarray(start, end), Buffer.alloc(fault.extraBytes ?? 0)]);
    if (fault.isCorrupt === true) body[body.length >> 1] ^= 1;
    if (first !== undefined) {
      response.statusCode = 206;
      response.setHeader('Content-Range', `bytes ${start}-${end - 1}/${bytes.length}`);
    }
    body = encoded(body, fault.encoding, response);
    response.setHeader('Content-Length', body.length);
    if (fault.cutAfter !== undefined) {
      body = body.subarray(0, fault.cutAfter);
      return void response.write(body, () => response.socket?.end());
    }
    if (fault.hold === undefined) return void response.end(body);
    const half = body.length >> 1;
    response.write(body.subarray(0, half));
    void fault.hold.then(() => response.end(body.subarray(half)));
  }
}

function encoded(body: Buffer, encoding: Fault['encoding'], response: ServerResponse): Buffer {
  if (encoding === undefined) return body;
  response.setHeader('Content-Encoding', encoding);
  return encoding === 'gzip' ? gzipSync(body) : brotliCompressSync(body);
}

function refuse(response: ServerResponse, status: number, code: string, message: string): void {
  response
    .writeHead(status, { 'X-Error-Code': code, 'X-Error-Message': message })
    .end(JSON.stringify({ error: message }));
}
