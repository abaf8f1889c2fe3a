import { type ApiErrorCode, ERROR_KINDS } from '../../base/errors';
import type { NullMap } from '../../base/json/nulls';
import type { Schema } from '../../base/json/schema-types';
import type { Route } from '../../http/routes';
import { anthropicType, isAnthropicPath, RESPONSES_PATH } from '../../base/error-styles';
import { RESPONSE_SCHEMAS, errorSchema } from './response-schemas';
import { exactly, string } from './schema-parts';
import { type Operation, OPERATIONS } from './operations';
import { sentSchema } from './request-schema';

/** The part of a route that the document describes. */
export interface DescribedRoute extends Pick<Route, 'method' | 'path'> {
  readonly summary?: string;
  /** Schema of the request body. Undefined without a body. */
  readonly requestSchema?: Schema;
  /** Where null in the body means "not given". */
  readonly nulls?: NullMap;
  /** The route answers 501. */
  readonly isNotImplemented?: boolean;
}

export interface DocumentOptions {
  version: string;
  /** Whether requests need an access key. */
  hasAccess: boolean;
}

type Json = Record<string, unknown>;

/** Errors of every route: those of requests that the transport cannot read. */
const TRANSPORT_ERRORS: readonly ApiErrorCode[] = ['malformed_request', 'method_not_allowed', 'request_too_large'];
const ACCESS_ERRORS: readonly ApiErrorCode[] = [
  'invalid_api_key',
  'permission_denied',
  'ip_not_allowed',
  'rate_limit_exceeded',
  'budget_exceeded',
  'auth_unavailable',
];

const STREAM_ERRORS: readonly ApiErrorCode[] = ['internal_error', 'engine_dead', 'shutting_down'];
/** Errors of a key that is revoked during a stream. */
const REVOKED: readonly ApiErrorCode[] = ['invalid_api_key', 'permission_denied'];

/**
 * Returns the OpenAPI 3.1 document of a server, from its routes and the schemas that validate its requests. Throws an
 * Error for a route without a description.
 */
export function openApiDocument(routes: readonly DescribedRoute[], { version, hasAccess }: DocumentOptions): Json {
  const paths: Record<string, Json> = {};
  for (const route of routes) (paths[route.path] ??= {})[route.method.toLowerCase()] = operation(route, hasAccess);
  return {
    openapi: '3.1.0',
    info: {
      title: 'Capstan',
      version,
      description:
        'The inference interfaces of OpenAI, vLLM and Anthropic. Fields outside the schemas are ignored or get unsupported_value.',
      license: { name: 'MIT', identifier: 'MIT' },
    },
    servers: [{ url: '/' }],
    ...(hasAccess ? { security: [{ accessKey: [] }] } : {}),
    paths,
    components: {
      schemas: RESPONSE_SCHEMAS,
      ...(hasAccess
        ? {
            securitySchemes: {
              accessKey: {
                type: 'http',
                scheme: 'bearer',
                description: 'An access key after "Bearer" and exactly one space',
              },
              anthropicKey: { type: 'apiKey', in: 'header', name: 'x-api-key', description: 'An access key' },
            },
          }
        : {}),
    },
  };
}

function operation(route: DescribedRoute, hasAccess: boolean): Json {
  const { method, path, requestSchema, nulls = {}, isNotImplemented = false } = route;
  const described: Operation | undefined = isNotImplemented
    ? { errors: ['not_implemented', 'model_loading', 'shutting_down'] }
    : OPERATIONS[`${method} ${path}`];
  if (described === undefined) throw new Error(`${method} ${path}: expected an entry in OPERATIONS`);
  const errors = [...TRANSPORT_ERRORS, ...(hasAccess ? ACCESS_ERRORS : []), ...described.errors];
  const parameters: Json[] = [
    ...[...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
      name,
      in: 'path',
      required: true,
      description: path.endsWith('}') ? 'Matches the rest of the path, slashes included' : 'An id',
      schema: { type: 'string', minLength: 1 },
    })),
    ...Object.entries(described.query ?? {}).map(([name, schema]) => ({ name, in: 'query', schema })),
    ...(described.anthropicResponse === undefined ? [] : [ANTHROPIC_VERSION]),
  ];
  const hasAnthropicKey = isAnthropicPath(path) || described.anthropicResponse !== undefined;
  return {
    operationId: operationId(method, path),
    summary: route.summary ?? described.summary,
    tags: [isNotImplemented ? 'not implemented' : 'implemented'],
    ...(hasAccess && hasAnthropicKey ? { security: [{ accessKey: [] }, { anthropicKey: [] }] } : {}),
    ...(parameters.length > 0 ? { parameters } : {}),
    ...(requestSchema === undefined ? {} : { requestBody: requestBody(sentSchema(requestSchema, nulls), described) }),
    ...(described.form === undefined ? {} : { requestBody: formBody(described.form) }),
    responses: {
      ...(isNotImplemented ? {} : { 200: okResponse(described, path, hasAccess) }),
      ...errorResponses(errors, path, described.anthropicResponse !== undefined),
    },
  };
}

const ANTHROPIC_VERSION = {
  name: 'anthropic-version',
  in: 'header',
  description: "The response and its errors have Anthropic's form, and x-api-key may hold the key",
  schema: { type: 'string' },
};

/** `POST /v1/chat/completions` becomes `post_v1_chat_completions`. */
function operationId(method: string, path: string): string {
  return [method.toLowerCase(), ...path.split(/[^\w]+/).filter((part) => part !== '')].join('_');
}

function requestBody(schema: Schema, { examples }: Operation): Json {
  const media = {
    schema,
    ...(examples === undefined
      ? {}
      : { examples: Object.fromEntries(Object.entries(examples).map(([name, value]) => [name, { value }])) }),
  };
  return { required: true, content: { 'application/json': media } };
}

function formBody(fields: Readonly<Record<string, object>>): Json {
  const schema = { type: 'object', required: Object.keys(fields), properties: fields };
  return { required: true, content: { 'multipart/form-data': { schema } } };
}

const REQUEST_ID = {
  'X-Request-Id': { description: "The client's id, or a random one", schema: { type: 'string' } },
};

function okResponse({ response: body, anthropicResponse, event }: Operation, path: string, hasAccess: boolean): Json {
  if (body === undefined) return { description: 'Success, without a body', headers: REQUEST_ID };
  const content: Json =
    anthropicResponse === undefined
      ? okContent(body)
      : { 'application/json': { schema: { anyOf: [componentRef(body), componentRef(anthropicResponse)] } } };
  if (event !== undefined) content['text/event-stream'] = { schema: eventSchema(event, path, hasAccess) };
  return { description: 'The response', headers: REQUEST_ID, content };
}

function okContent(body: NonNullable<Operation['response']>): Json {
  if (body === 'text') return { 'text/plain': { schema: { type: 'string' } } };
  if (body === 'bytes') return { 'application/octet-stream': { schema: { type: 'string', format: 'binary' } } };
  return { 'application/json': { schema: body === 'object' ? { type: 'object' } : componentRef(body) } };
}

/** Returns the schema of one event, because OpenAPI 3.1 cannot describe a stream. */
function eventSchema(event: string, path: string, hasAccess: boolean): Json {
  const json = (description: string, contentSchema: unknown): Json => ({
    type: 'string',
    description,
    contentMediaType: 'application/json',
    contentSchema,
  });
  const codes = hasAccess ? [...STREAM_ERRORS, ...REVOKED] : STREAM_ERRORS;
  const part = json('Part of the response', componentRef(event));
  const described = { type: 'object', description: 'With "stream": true' };
  if (hasNamedEvents(path)) {
    const data = { anyOf: [part, json('An error. Nothing follows.', eventErrorOf(codes, path))] };
    return { ...described, required: ['event', 'data'], properties: { event: { type: 'string' }, data } };
  }
  const data = {
    anyOf: [
      part,
      json('An error. Only [DONE] follows.', errorOf(codes, path)),
      { const: '[DONE]', description: 'The end of the stream' },
    ],
  };
  return { ...described, required: ['data'], properties: { data } };
}

function hasNamedEvents(path: string): boolean {
  return isAnthropicPath(path) || path === RESPONSES_PATH;
}

/** Returns the schema of an error in a stream of named events. */
function eventErrorOf(codes: readonly ApiErrorCode[], path: string): Json {
  if (isAnthropicPath(path)) return errorOf(codes, path);
  const code = { type: 'string', enum: codes };
  const { properties } = errorOf(codes, path) as { properties: { error: Json } };
  return exactly(
    { type: { const: 'error' }, code, message: string, param: { type: ['string', 'null'] }, error: properties.error },
    { sequence_number: { type: 'integer' } },
  );
}

function componentRef(name: string): Json {
  return { $ref: `#/components/schemas/${name}` };
}

function errorResponses(codes: readonly ApiErrorCode[], path: string, hasBothForms: boolean): Json {
  const statuses = [...new Set(codes.map((code) => ERROR_KINDS[code].status))].sort((a, b) => a - b);
  return Object.fromEntries(
    statuses.map((status) => {
      const ofStatus = [...new Set(codes)].filter((code) => ERROR_KINDS[code].status === status);
      return [
        status,
        {
          description: ofStatus.join(', '),
          headers: errorHeaders(status),
          content: {
            'application/json': {
              schema: hasBothForms
                ? { anyOf: [errorOf(ofStatus, path), anthropicErrorOf(ofStatus)] }
                : errorOf(ofStatus, path),
            },
          },
        },
      ];
    }),
  );
}

function errorOf(codes: readonly ApiErrorCode[], path: string): Json {
  if (isAnthropicPath(path)) return anthropicErrorOf(codes);
  return errorSchema(
    codes,
    codes.map((code) => ERROR_KINDS[code].type),
  );
}

function anthropicErrorOf(codes: readonly ApiErrorCode[]): Json {
  const types = new Set(codes.map((code) => anthropicType(ERROR_KINDS[code].status)));
  return exactly({
    type: { const: 'error' },
    error: exactly({ type: { type: 'string', enum: [...types] }, message: { type: 'string', minLength: 1 } }),
    request_id: string,
  });
}

function errorHeaders(status: number): Json {
  const text = (description: string) => ({ description, schema: { type: 'string' } });
  if (status === 401) return { ...REQUEST_ID, 'WWW-Authenticate': text('Bearer') };
  if (status === 405) return { ...REQUEST_ID, Allow: text('The allowed methods') };
  if (status === 429 || status === 503)
    return { ...REQUEST_ID, 'Retry-After': text('Seconds until the next attempt, if known') };
  return REQUEST_ID;
}
