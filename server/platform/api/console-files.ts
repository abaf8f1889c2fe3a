import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { extname, join, relative, sep } from 'node:path';
import { header, type HttpReply, type HttpRequest } from 'capstan/internal';
import { securityHeaders } from './headers';

/** Output folder of the console build, relative to the compiled server. */
export const CONSOLE_FOLDER = join(__dirname, '../console');

/** No inline scripts or styles, no foreign resources, no framing. */
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'self'",
  "frame-ancestors 'none'",
  "object-src 'none'",
].join('; ');

const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
};

interface ConsoleFile {
  type: string;
  body: string;
  etag: string;
  /** Whether the file name contains a content hash. */
  isImmutable: boolean;
}

/** Serves the console from memory: a few text files, and index.html for every page address. */
export class ConsoleFiles {
  readonly #files: ReadonlyMap<string, ConsoleFile>;
  readonly #headers: Readonly<Record<string, string>>;

  /** Without a build in `folder`, every address responds with 503. */
  constructor(folder: string, settings: { isSecure: boolean }) {
    this.#files = readFiles(folder);
    this.#headers = { ...securityHeaders(settings), 'Content-Security-Policy': POLICY };
  }

  /** Whether the folder contains a build. */
  get isBuilt(): boolean {
    return this.#files.has('/index.html');
  }

  handle(request: HttpRequest, reply: HttpReply): Promise<void> {
    this.#respond(request, reply);
    return Promise.resolve();
  }

  #respond(request: HttpRequest, reply: HttpReply): void {
    const { method, path } = request;
    if (method !== 'GET' && method !== 'HEAD')
      return this.#sendText(reply, 405, 'expected GET or HEAD', { Allow: 'GET, HEAD' });
    const file = this.#files.get(path) ?? (isAddress(path) ? this.#files.get('/index.html') : undefined);
    if (file !== undefined) return this.#send(file, request, reply);
    if (!this.isBuilt) return this.#sendText(reply, 503, 'The console is not built: run npm run build:console');
    this.#sendText(reply, 404, 'This path does not exist');
  }

  #send({ type, body, etag, isImmutable }: ConsoleFile, request: HttpRequest, reply: HttpReply): void {
    const headers = {
      ...this.#headers,
      ETag: etag,
      'Cache-Control': isImmutable ? 'public, max-age=31536000, immutable' : 'no-cache',
    };
    const cachedTags = header(request, 'if-none-match')
      ?.split(',')
      .map((tag) => tag.trim().replace(/^W\//, ''));
    if (cachedTags?.includes(etag) === true) return reply.send(304, headers, '');
    reply.send(200, { ...headers, 'Content-Type': type }, body);
  }

  #sendText(reply: HttpReply, status: number, text: string, headers: Record<string, string> = {}): void {
    reply.send(
      status,
      { ...this.#headers, ...headers, 'Content-Type': 'text/plain; charset=utf-8', 'Cache-Control': 'no-store' },
      `${text}\n`,
    );
  }
}

/** Whether a path is a page of the console. Files have a suffix, and paths below `assets` are always files. */
function isAddress(path: string): boolean {
  return !path.startsWith('/assets/') && extname(path) === '';
}

function readFiles(folder: string): Map<string, ConsoleFile> {
  const files = new Map<string, ConsoleFile>();
  for (const entry of entriesOf(folder)) {
    const path = join(entry.parentPath, entry.name);
    const type = TYPES[extname(entry.name)];
    if (!entry.isFile() || type === undefined) continue;
    const body = readFileSync(path, 'utf8');
    const url = `/${relative(folder, path).split(sep).join('/')}`;
    files.set(url, {
      type,
      body,
      etag: `"${createHash('sha256').update(body).digest('base64url').slice(0, 27)}"`,
      isImmutable: url.startsWith('/assets/'),
    });
  }
  return files;
}

function entriesOf(folder: string) {
  try {
    return readdirSync(folder, { recursive: true, withFileTypes: true });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}
