import { randomUUID } from 'node:crypto';
import { packageVersion } from 'capstan/internal/cli';
import type {
  Capacity,
  Container,
  ContainerEdit,
  DataSource,
  Deployment,
  DeploymentEdit,
  DeploymentEvent,
  DeployPreview,
  Image,
  LogLine,
  LogPage,
  Metrics,
  NewContainer,
  NewDeployment,
  NewVersion,
  Problem,
  Propagation,
  TestRequest,
  UpstreamVersion,
  Version,
} from './objects';
import type { Page } from './json-schema';

export interface ClientOptions {
  /** URL of the management API, for example `http://127.0.0.1:8090`. */
  url: string;
  /** A management token. */
  token?: string;
  fetch?: typeof fetch;
}

export interface RequestOptions {
  query?: Readonly<Record<string, string | number | boolean | undefined>>;
  body?: unknown;
  /** Expected revision of the object. */
  ifMatch?: number;
  signal?: AbortSignal;
}

/** An error response of the API, or a failed connection (status 0). */
export class ApiFailure extends Error {
  override readonly name = 'ApiFailure';
  readonly status: number;
  /** Code of the problem document. `unreachable` without a response. */
  readonly code: string;

  constructor(status: number, code: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.status = status;
    this.code = code;
  }
}

/** One event of a `text/event-stream`. */
export interface ServerEvent {
  id: string;
  event: string;
  data: string;
}

type Changed<T> = T & { propagation?: Propagation; warnings?: string[] };
type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

const PAGE_SIZE = 100;

/** TypeScript client of the management API, for commands, tests and programs. */
export class Client {
  /** URL of the console and the API, without a trailing slash. */
  readonly url: string;
  readonly #token: string | undefined;
  readonly #fetch: typeof fetch;

  constructor({ url, token, fetch: fetchFunction = fetch }: ClientOptions) {
    this.url = url.replace(/\/+$/, '');
    this.#token = token;
    this.#fetch = fetchFunction;
  }

  readonly deployments = {
    list: (query: RequestOptions['query'] = {}) => this.all<Deployment>('/deployments', query),
    get: (id: string) => this.request<Deployment>('GET', `/deployments/${id}`),
    create: (body: NewDeployment) => this.request<Deployment>('POST', '/deployments', { body }),
    edit: (id: string, body: DeploymentEdit, ifMatch: number) =>
      this.request<Deployment>('PATCH', `/deployments/${id}`, { body, ifMatch }),
    /** @param confirm Name of the deployment. */
    remove: (id: string, confirm: string) =>
      this.request<Deployment>('DELETE', `/deployments/${id}`, { query: { confirm } }),
    command: (id: string, command: 'start' | 'stop' | 'restart' | 'scale-to-zero') =>
      this.request<Deployment>('POST', `/deployments/${id}/${command}`),
    setAccess: (id: string, enabled: boolean, ifMatch: number) =>
      this.request<Changed<Deployment>>('PUT', `/deployments/${id}/access-control`, { body: { enabled }, ifMatch }),
    events: (id: string) => this.all<DeploymentEvent>(`/deployments/${id}/events`, {}),
    followEvents: (id: string, signal?: AbortSignal) =>
      this.stream('GET', `/deployments/${id}/events/stream`, { signal }),
    metrics: (id: string, query: RequestOptions['query'] = {}) =>
      this.request<Metrics>('GET', `/deployments/${id}/metrics`, { query }),
    test: (id: string, body: TestRequest, signal?: AbortSignal) =>
      this.stream('POST', `/deployments/${id}/test`, { body, signal }),
  };

  readonly versions = {
    list: (deploymentId: string) => this.all<Version>(`/deployments/${deploymentId}/versions`, {}),
    listUpstream: (deploymentId: string) =>
      this.request<{ data: UpstreamVersion[] }>('GET', `/deployments/${deploymentId}/upstream-versions`),
    get: (deploymentId: string, number: number) =>
      this.request<Version>('GET', `/deployments/${deploymentId}/versions/${number}`),
    create: (deploymentId: string, body: NewVersion) =>
      this.request<Version>('POST', `/deployments/${deploymentId}/versions`, { body }),
    activate: (deploymentId: string, number: number) =>
      this.request<unknown>('POST', `/deployments/${deploymentId}/versions/${number}/activate`),
    remove: (deploymentId: string, number: number) =>
      this.request<unknown>('DELETE', `/deployments/${deploymentId}/versions/${number}`),
    logs: (deploymentId: string, number: number, query: RequestOptions['query'] = {}) =>
      this.request<LogPage>('GET', `/deployments/${deploymentId}/versions/${number}/logs`, { query }),
    followLogs: (deploymentId: string, number: number, query: RequestOptions['query'], signal?: AbortSignal) =>
      this.stream('GET', `/deployments/${deploymentId}/versions/${number}/logs/follow`, { query, signal }),
  };

  readonly containers = {
    list: (query: RequestOptions['query'] = {}) => this.all<Container>('/containers', query),
    get: (id: string) => this.request<Container>('GET', `/containers/${id}`),
    create: (body: NewContainer) => this.request<Container>('POST', '/containers', { body }),
    edit: (id: string, body: ContainerEdit, ifMatch: number) =>
      this.request<Container>('PATCH', `/containers/${id}`, { body, ifMatch }),
    command: (id: string, command: 'start' | 'stop') => this.request<Container>('POST', `/containers/${id}/${command}`),
    /** @param confirm Name of the container. */
    remove: (id: string, confirm: string) =>
      this.request<unknown>('DELETE', `/containers/${id}`, { query: { confirm } }),
    preview: (id: string) => this.request<DeployPreview>('GET', `/containers/${id}/deploy-preview`),
    deploy: (id: string, body: NewDeployment) => this.request<Deployment>('POST', `/containers/${id}/deploy`, { body }),
    logs: (id: string, query: RequestOptions['query'] = {}) =>
      this.request<LogPage>('GET', `/containers/${id}/logs`, { query }),
  };

  readonly images = { list: () => this.all<Image>('/images', {}) };
  readonly dataSources = { list: () => this.all<DataSource>('/data-sources', {}) };
  compute = () => this.request<Capacity>('GET', '/compute');

  /** Throws ApiFailure. */
  async request<T>(method: Method, path: string, options: RequestOptions = {}): Promise<T> {
    const response = await this.#send(method, path, options, 'application/json');
    const text = await response.text();
    return (text === '' ? undefined : JSON.parse(text)) as T;
  }

  /** Returns a response that is no JSON. Throws ApiFailure. */
  async text(path: string, query: RequestOptions['query']): Promise<string> {
    return (await this.#send('GET', path, { query }, 'text/csv')).text();
  }

  /** Returns all items of a list, fetched page by page. */
  async all<T>(path: string, query: RequestOptions['query']): Promise<T[]> {
    const items: T[] = [];
    let after: string | undefined;
    do {
      const page: Page<T> = await this.request('GET', path, { query: { limit: PAGE_SIZE, ...query, after } });
      items.push(...page.data);
      after = page.next ?? undefined;
    } while (after !== undefined);
    return items;
  }

  /** Yields the events of a response as they arrive. Leaving the loop aborts the request. */
  async *stream(method: Method, path: string, options: RequestOptions = {}): AsyncGenerator<ServerEvent> {
    const controller = new AbortController();
    const signal =
      options.signal === undefined ? controller.signal : AbortSignal.any([options.signal, controller.signal]);
    try {
      const response = await this.#send(method, path, { ...options, signal }, 'text/event-stream');
      yield* readEvents(response.body ?? new ReadableStream());
    } catch (error) {
      if (error instanceof ApiFailure || signal.aborted) throw error;
      throw new ApiFailure(0, 'unreachable', `lost the connection to ${this.url}`, { cause: error });
    } finally {
      controller.abort();
    }
  }

  async #send(
    method: Method,
    path: string,
    { query = {}, body, ifMatch, signal }: RequestOptions,
    accept: string,
  ): Promise<Response> {
    const url = new URL(`${this.url}/api/v1${path}`);
    for (const [name, value] of Object.entries(query))
      if (value !== undefined) url.searchParams.set(name, String(value));
    const headers: Record<string, string> = { Accept: accept, 'User-Agent': `capstan/${packageVersion()}` };
    if (this.#token !== undefined) headers.Authorization = `Bearer ${this.#token}`;
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    if (ifMatch !== undefined) headers['If-Match'] = `"${ifMatch}"`;
    if (method === 'POST') headers['Idempotency-Key'] = randomUUID();
    const init: RequestInit = {
      method,
      headers,
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
      redirect: 'error',
    };
    const response = await this.#fetch(url, init)
      .catch((error: unknown) => {
        if (!isUnresolvedLocalName(url, error)) throw error;
        url.hostname = 'localhost';
        return this.#fetch(url, init);
      })
      .catch((error: unknown) => {
        throw unreachable(this.url, error);
      });
    if (!response.ok) throw await failureOf(response);
    return response;
  }
}

const UNRESOLVED = /^(?:ENOTFOUND|EAI_AGAIN)$/;

/** Browsers and curl know that names below `localhost` are this machine, but few resolvers do. */
function isUnresolvedLocalName({ protocol, hostname }: URL, error: unknown): boolean {
  const { code = '' } = ((error as Error).cause ?? {}) as NodeJS.ErrnoException;
  return protocol === 'http:' && hostname.endsWith('.localhost') && UNRESOLVED.test(code);
}

const HINTS: readonly { codes: RegExp; hint: string }[] = [
  {
    codes:
      /^(?:DEPTH_ZERO_SELF_SIGNED_CERT|SELF_SIGNED_CERT_IN_CHAIN|UNABLE_TO_VERIFY_LEAF_SIGNATURE|UNABLE_TO_GET_ISSUER_CERT(?:_LOCALLY)?)$/,
    hint: 'its certificate is not trusted here; set NODE_EXTRA_CA_CERTS=FILE to trust it',
  },
  { codes: UNRESOLVED, hint: 'this machine finds no address for the host name; check the URL' },
];

function unreachable(url: string, error: unknown): Error {
  const { name, message, cause } = error as Error;
  if (name === 'AbortError') return error as Error;
  const { code, message: reason } = (cause ?? {}) as NodeJS.ErrnoException;
  const hint = HINTS.find(({ codes }) => codes.test(code ?? ''))?.hint ?? 'is capstan up running there?';
  return new ApiFailure(0, 'unreachable', `cannot reach ${url} (${code ?? reason ?? message}): ${hint}`, {
    cause: error,
  });
}

async function failureOf(response: Response): Promise<ApiFailure> {
  const text = await response.text().catch(() => '');
  try {
    const { detail, title, code, errors = [] } = JSON.parse(text) as Partial<Problem>;
    if (title === undefined && detail === undefined) return foreignFailure(response);
    // The detail already contains the first error.
    const places = errors
      .slice(errors.length > 0 && detail?.endsWith(errors[0].message) === true ? 1 : 0)
      .map(({ pointer, message }) => `; ${pointer}: ${message}`)
      .join('');
    return new ApiFailure(
      response.status,
      code ?? 'error',
      `${detail ?? title}${places} (${response.status}${code === undefined ? '' : ` ${code}`})`,
    );
  } catch {
    return foreignFailure(response);
  }
}

/** For example of a proxy, or of the port of the deployments. */
function foreignFailure({ status, statusText }: Response): ApiFailure {
  const next =
    status >= 500 ? 'Is capstan up running behind it?' : 'Use the URL of the console, which capstan up prints';
  return new ApiFailure(
    status,
    'error',
    `${status} ${statusText}: not a response of Capstan's management API. ${next}`,
  );
}

async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const bytes of body) {
    rest += decoder.decode(bytes, { stream: true });
    const blocks = rest.split(/\r?\n\r?\n/);
    rest = blocks.pop()!;
    for (const block of blocks) {
      const event = toEvent(block);
      if (event !== undefined) yield event;
    }
  }
}

/** Returns undefined for a comment. */
function toEvent(block: string): ServerEvent | undefined {
  const fields = block
    .split(/\r?\n/)
    .map((line) => /^([a-z]+): ?(.*)$/s.exec(line))
    .filter((match) => match !== null);
  const values = (name: string) => fields.filter(([, field]) => field === name).map(([, , value]) => value);
  const data = values('data');
  return data.length === 0
    ? undefined
    : { id: values('id').at(-1) ?? '', event: values('event').at(-1) ?? 'message', data: data.join('\n') };
}

/** Parses the data of an event of a followed log. */
export function toLogLine({ data }: ServerEvent): LogLine {
  return JSON.parse(data) as LogLine;
}
