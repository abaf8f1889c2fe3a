import {
  anthropicModelPage,
  ApiError,
  convertRequest,
  type ConvertedResponse,
  header,
  isAnthropicRequest,
  isLight,
  LIGHT,
  type Log,
  mediaType,
  shapeOf,
  type StreamedRequest,
  topLevelValues,
  withTopLevelValues,
} from 'capstan/internal';
import type { UpstreamRequest } from '../request-head';
import type { TargetReplica, UpstreamSettings } from '../targets';
import type { UpstreamResponse } from '../upstream';
import { checkAccount, mustNotStore, startsThread } from './account-rules';
import type { GatheredBody } from './gathered-body';
import { jsonResponse, type Received, receive } from './received';
import type { ResponseMemory } from './response-memory';
import { upstreamRoute, type UpstreamRoute } from './routes';
import { pathAt, upstreamHeaders, upstreamReturned } from './upstream-headers';

export interface UpstreamCallParts {
  replica: TargetReplica & { upstream: UpstreamSettings };
  request: StreamedRequest;
  /** Path at the deployment. */
  path: string;
  requestId: string;
  signal: AbortSignal;
  idleTimeoutMs: number;
  memory: ResponseMemory;
  log: Pick<Log, 'info'>;
}

/** What the request names as its model. */
export interface WantedModel {
  /** As sent by the client. undefined: the body names it. */
  requested: string | undefined;
  /** The model within the deployment, if the client named one. */
  inner: string | undefined;
}

/** One attempt to serve a request by an upstream server, which may have another interface. */
export class UpstreamCall {
  readonly #parts: UpstreamCallParts;
  readonly #route: UpstreamRoute;
  #isStream = false;
  #stripsUsage = false;
  #shownModel: string | undefined;
  #converted: ConvertedResponse | undefined;

  /** Throws ApiError for a request that upstreams do not get. */
  constructor(parts: UpstreamCallParts) {
    const { replica, request, path } = parts;
    this.#parts = parts;
    this.#route = upstreamRoute({ method: request.method, path }, replica.upstream.interfaces);
  }

  get settings(): UpstreamSettings {
    return this.#parts.replica.upstream;
  }

  /** Returns the list of models of an upstream that has one. undefined for any other request. */
  local(name: string | null): UpstreamResponse | undefined {
    const { model } = this.#parts.replica.upstream;
    if (this.#route !== 'models' || model === null) return undefined;
    const { path, request } = this.#parts;
    const listed = { id: name ?? model, object: 'model', created: 0, owned_by: 'capstan', root: model, parent: null };
    const headers = upstreamReturned([]);
    return jsonResponse(
      { status: 200, rawHeaders: headers, connectMs: 0 },
      JSON.stringify(
        isAnthropicRequest(path, request.headers)
          ? anthropicModelPage([listed], request.query)
          : { object: 'list', data: [listed] },
      ),
    );
  }

  /** Returns the request for the upstream. Throws ApiError for a body that cannot be sent. */
  async prepare(body: GatheredBody, wanted: WantedModel): Promise<UpstreamRequest> {
    if (this.#route === 'models') return this.#requestFor('models', undefined);
    const { request, replica } = this.#parts;
    checkJson(request);
    const bytes = await body.read();
    const { interfaces } = replica.upstream;
    const route = this.#route;
    if (route === 'chat' || route === 'responses' || route === 'messages')
      if (!interfaces.includes(route)) return this.#convert(bytes, wanted, route);
    return this.#passed(bytes, wanted);
  }

  /** Known once the request is prepared. */
  get isStream(): boolean {
    return this.#isStream;
  }

  /** Converts the response. Throws ApiError or UpstreamError for one that is of no use. */
  receive(response: UpstreamResponse): Promise<Received> {
    const { replica, path, requestId, idleTimeoutMs, memory } = this.#parts;
    return receive(response, {
      route: this.#route,
      path,
      requestId,
      secret: replica.secret,
      isStream: this.#isStream,
      converted: this.#converted,
      shownModel: this.#shownModel,
      stripsUsage: this.#stripsUsage,
      idleTimeoutMs,
      memory,
    });
  }

  /** The upstream has the interface of the client. All that does not change keeps its bytes: long numbers too. */
  #passed(bytes: Buffer, wanted: WantedModel): UpstreamRequest {
    const value = parseObject(bytes);
    const body = withoutRepeated(bytes, value);
    checkAccount(this.#route, value);
    const requested = wanted.requested ?? textOf(value.model);
    const model = this.#modelFor({ ...wanted, requested });
    this.#shownModel = requested;
    const changes: Record<string, unknown> = {};
    if (model !== undefined && model !== value.model) changes.model = model;
    this.#isStream = value.stream === true;
    if (this.#isStream && this.#parts.path.endsWith('/completions'))
      changes.stream_options = this.#withUsage(value.stream_options);
    if (startsThread(this.#route, value)) changes.thread = null;
    if (mustNotStore(this.#route, value, this.#parts.replica.upstream)) changes.store = false;
    return this.#requestFor(this.#route, withFields(body, changes));
  }

  /** Returns the options of a stream that reports its usage. */
  #withUsage(options: unknown): object {
    const own = typeof options === 'object' && options !== null ? options : {};
    this.#stripsUsage = (own as { include_usage?: unknown }).include_usage !== true;
    return { ...own, include_usage: true };
  }

  async #convert(
    bytes: Buffer,
    wanted: WantedModel,
    from: 'chat' | 'responses' | 'messages',
  ): Promise<UpstreamRequest> {
    const { request, replica, requestId, signal, log } = this.#parts;
    const { interfaces } = replica.upstream;
    const to = interfaces.includes('chat') ? 'chat' : 'messages';
    const requested = wanted.requested ?? modelIn(bytes);
    const model = this.#modelFor({ ...wanted, requested });
    if (model === undefined) {
      parseObject(bytes);
      throw new ApiError('missing_required_parameter', 'model: expected the name of a model of the upstream', {
        param: 'model',
      });
    }
    // A thread may take the memory of the copy.
    const readBody = (): Promise<Buffer> => Promise.resolve(Buffer.from(bytes));
    const converted = await convertRequest(
      { ...request, readBody },
      {
        from,
        to,
        model,
        shownModel: requested ?? model,
        isModern: interfaces.includes('responses'),
        requestId,
        signal,
        log,
      },
    );
    this.#isStream = converted.isStream;
    this.#converted = converted.response;
    return this.#requestFor(to, converted.body);
  }

  #requestFor(route: UpstreamRoute, body: Buffer | undefined): UpstreamRequest {
    const { replica, request, path, requestId } = this.#parts;
    const { upstream, secret } = replica;
    return {
      method: request.method,
      target: pathAt(upstream, this.#converted === undefined ? path : PATHS[route as keyof typeof PATHS]),
      headers: upstreamHeaders(request, upstream, { route, secret, requestId, isStream: this.#isStream }),
      body,
    };
  }

  #modelFor({ requested, inner }: WantedModel): string | undefined {
    const { model } = this.#parts.replica.upstream;
    if (model === null) return inner ?? requested;
    if (inner !== undefined && inner !== model)
      throw new ApiError(
        'model_not_found',
        `model: this deployment has one model, expected ${JSON.stringify(model)} behind its name, got ${JSON.stringify(inner.slice(0, 100))}`,
        { param: 'model' },
      );
    return model;
  }
}

const PATHS = { chat: '/v1/chat/completions', messages: '/v1/messages' } as const;

function checkJson(request: StreamedRequest): void {
  const type = mediaType(request) ?? 'application/json';
  const encoding = header(request, 'content-encoding')?.toLowerCase() ?? 'identity';
  if (type !== 'application/json' || encoding !== 'identity')
    throw new ApiError(
      'unsupported_media_type',
      'Expected a JSON body without Content-Encoding, because this deployment forwards to an upstream',
    );
}

function parseObject(bytes: Buffer): Record<string, unknown> {
  if (!isLight(bytes)) throw new ApiError('invalid_json', `The body is too complex: expected ${LIGHT}`);
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString());
  } catch {
    throw new ApiError('invalid_json', 'The body is not valid JSON');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new ApiError('invalid_json', 'The body is not valid JSON: expected an object');
  return value as Record<string, unknown>;
}

/**
 * Returns a body in which no object repeats a field: servers disagree about which one counts.
 * @param value What `bytes` say.
 */
function withoutRepeated(bytes: Buffer, value: object): Buffer {
  return shapeOf(bytes).numFields === countFields(value) ? bytes : Buffer.from(JSON.stringify(value));
}

function withFields(body: Buffer, fields: Readonly<Record<string, unknown>>): Buffer {
  const texts = Object.entries(fields).map(([name, field]): [string, string] => [name, JSON.stringify(field)]);
  return texts.length === 0 ? body : withTopLevelValues(body, topLevelValues(body), Object.fromEntries(texts));
}

function countFields(value: object): number {
  let numFields = 0;
  const open: object[] = [value];
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    const inner: unknown[] = Array.isArray(next) ? next : Object.values(next);
    if (inner !== next) numFields += inner.length;
    for (const item of inner) if (typeof item === 'object' && item !== null) open.push(item);
  }
  return numFields;
}

/** Returns the field `model` of a body that may be invalid. */
function modelIn(bytes: Buffer): string | undefined {
  try {
    const range = topLevelValues(bytes).get('model');
    return range === undefined ? undefined : textOf(JSON.parse(bytes.toString('utf8', range.start, range.end)));
  } catch {
    return undefined;
  }
}

function textOf(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}
