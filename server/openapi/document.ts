import { type ApiErrorCode, ERROR_KINDS } from '../errors';
import type { NullMap } from '../openai/nulls';
import type { Schema } from '../openai/schema';
import type { Route } from '../routes';
import { ANSWER_SCHEMAS, errorSchema } from './answer-schemas';
import { type Operation, OPERATIONS } from './operations';
import { sentSchema } from './request-schema';

/** What a route may say of itself. */
export interface DescribedRoute extends Pick<Route, 'method' | 'path'> {
  readonly summary?: string;
  /** Of its body; undefined without one. */
  readonly requestSchema?: Schema;
  /** Where its body may hold null for "not given". */
  readonly nulls?: NullMap;
  /** Known by name alone: answers 501. */
  readonly isNotImplemented?: boolean;
}

export interface DocumentOptions {
  version: string;
  /** Whether requests need an access key. */
  hasAccess: boolean;
}

type Json = Record<string, unknown>;

/** Of every route: what the transport answers when it cannot read a request. */
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
/** Of a key that loses its right while a stream runs. */
const REVOKED: readonly ApiErrorCode[] = ['invalid_api_key', 'permission_denied'];

/** The OpenAPI 3.1 description of a server, from the routes that answer and the schemas that validate. @throws Error for a route that nothing is said of. */
export function openApiDocument(routes: readonly DescribedRoute[], { version, hasAccess }: DocumentOptions): Json {
  const paths: Record<string, Json> = {};
  for (const route of routes) (paths[route.path] ??= {})[route.method.toLowerCase()] = operation(route, hasAccess);
  return {
    openapi: '3.1.0',
    info: {
      title: 'Capstan',
      version,
      description:
        'The inference interface of OpenAI and vLLM. Fields that a schema does not name are ignored or refused by name.',
      license: { name: 'MIT', identifier: 'MIT' },
    },
    servers: [{ url: '/' }],
    ...(hasAccess ? { security: [{ accessKey: [] }] } : {}),
    paths,
    components: {
      schemas: ANSWER_SCHEMAS,
      ...(hasAccess
        ? {
            securitySchemes: {
              accessKey: {
                type: 'http',
                scheme: 'bearer',
                description: 'An access key, after "Bearer" and exactly one space',
              },
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
  if (described === undefined) throw new Error(`${method} ${path}: nothing is said of this route`);
  const errors = [...TRANSPORT_ERRORS, ...(hasAccess ? ACCESS_ERRORS : []), ...described.errors];
  const parameters = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    description: 'Takes the rest of the path, slashes included',
    schema: { type: 'string', minLength: 1 },
  }));
  return {
    operationId: operationId(method, path),
    summary: route.summary ?? described.summary,
    tags: [isNotImplemented ? 'not implemented' : 'implemented'],
    ...(parameters.length > 0 ? { parameters } : {}),
    ...(requestSchema === undefined ? {} : { requestBody: requestBody(sentSchema(requestSchema, nulls), described) }),
    responses: { ...(isNotImplemented ? {} : { 200: answer(described, hasAccess) }), ...errorAnswers(errors) },
  };
}

/** `POST /v1/chat/completions` to `post_v1_chat_completions`. */
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

const REQUEST_ID = {
  'X-Request-Id': { description: "The client's own id, or a random one", schema: { type: 'string' } },
};

function answer({ answer: body, event }: Operation, hasAccess: boolean): Json {
  if (body === undefined) return { description: 'Yes', headers: REQUEST_ID };
  const content: Json =
    body === 'text'
      ? { 'text/plain': { schema: { type: 'string' } } }
      : { 'application/json': { schema: body === 'object' ? { type: 'object' } : componentRef(body) } };
  if (event !== undefined) content['text/event-stream'] = { schema: eventSchema(event, hasAccess) };
  return { description: 'The answer', headers: REQUEST_ID, content };
}

/** Of one event, as is the custom before OpenAPI 3.2. */
function eventSchema(event: string, hasAccess: boolean): Json {
  const json = (description: string, contentSchema: unknown): Json => ({
    type: 'string',
    description,
    contentMediaType: 'application/json',
    contentSchema,
  });
  const data = {
    anyOf: [
      json('Part of the answer', componentRef(event)),
      json('An error, the last before the end', errorOf(hasAccess ? [...STREAM_ERRORS, ...REVOKED] : STREAM_ERRORS)),
      { const: '[DONE]', description: 'The end' },
    ],
  };
  return { type: 'object', description: 'With "stream": true', required: ['data'], properties: { data } };
}

function componentRef(name: string): Json {
  return { $ref: `#/components/schemas/${name}` };
}

function errorAnswers(codes: readonly ApiErrorCode[]): Json {
  const statuses = [...new Set(codes.map((code) => ERROR_KINDS[code].status))].sort((a, b) => a - b);
  return Object.fromEntries(
    statuses.map((status) => {
      const ofStatus = [...new Set(codes)].filter((code) => ERROR_KINDS[code].status === status);
      return [
        status,
        {
          description: ofStatus.join(', '),
          headers: errorHeaders(status),
          content: { 'application/json': { schema: errorOf(ofStatus) } },
        },
      ];
    }),
  );
}

function errorOf(codes: readonly ApiErrorCode[]): Json {
  return errorSchema(
    codes,
    codes.map((code) => ERROR_KINDS[code].type),
  );
}

function errorHeaders(status: number): Json {
  const text = (description: string) => ({ description, schema: { type: 'string' } });
  if (status === 401) return { ...REQUEST_ID, 'WWW-Authenticate': text('Bearer') };
  if (status === 405) return { ...REQUEST_ID, Allow: text('The methods of this path') };
  if (status === 429 || status === 503)
    return { ...REQUEST_ID, 'Retry-After': text('Seconds after which to try again, where they are known') };
  return REQUEST_ID;
}
