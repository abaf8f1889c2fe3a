import { packageVersion } from 'capstan/internal';
import * as objects from '../objects';
import { PROBLEMS, type ProblemCode } from '../problem';
import { type ApiRoute, defineRoute } from '../route';

type Json = Record<string, unknown>;

/** Errors of every route. */
const COMMON: readonly ProblemCode[] = [
  'malformed_request',
  'method_not_allowed',
  'internal_error',
  'unavailable',
  'storage_full',
];
const CALLER_PROBLEMS: readonly ProblemCode[] = ['unauthenticated', 'forbidden', 'too_many_attempts'];
const BODY_PROBLEMS: readonly ProblemCode[] = [
  'invalid_json',
  'invalid_request',
  'request_timeout',
  'request_too_large',
  'unsupported_media_type',
  'invalid_argument',
];

/** Names of the exported schemas. Other schemas are inlined. */
const COMPONENTS = new Map<unknown, string>(
  Object.entries(objects)
    .filter(([, value]) => typeof value === 'object' && 'type' in value)
    .map(([name, value]) => [value, name]),
);

/** Builds the OpenAPI 3.1 document from the routes and their schemas. */
export function managementDocument(routes: readonly ApiRoute[]): Json {
  const paths: Record<string, Json> = {};
  for (const route of routes) (paths[route.path] ??= {})[route.method.toLowerCase()] = operation(route);
  return {
    openapi: '3.1.0',
    info: {
      title: 'Capstan management API',
      version: packageVersion(),
      license: { name: 'MIT', identifier: 'MIT' },
      description:
        'Deployments, containers, keys and organizations. Errors are application/problem+json (RFC 9457). Objects without access respond with 404.',
    },
    servers: [{ url: '/' }],
    tags: [...new Set(routes.map(({ tag }) => tag))].map((name) => ({ name })),
    security: [{ managementToken: [] }, { session: [] }],
    paths,
    components: {
      schemas: Object.fromEntries([...COMPONENTS].map(([schema, name]) => [name, schema])),
      securitySchemes: {
        managementToken: { type: 'http', scheme: 'bearer', description: 'Management token, mt-…' },
        session: {
          type: 'apiKey',
          in: 'cookie',
          name: '__Host-capstan',
          description:
            'Console session (capstan_session over plain HTTP). Requests also need the X-Session-Secret of the sign-in, unless the console has its own host name. Changes also need X-CSRF-Token',
        },
      },
    },
  };
}

/**
 * Returns the route GET /api/v1/openapi.json. @param routes All routes, including this one. Read at the first request.
 */
export function openApiRoute(routes: () => readonly ApiRoute[]): ApiRoute {
  let document: Json | undefined;
  return defineRoute({
    method: 'GET',
    path: '/api/v1/openapi.json',
    summary: 'Get this OpenAPI document',
    tag: 'service',
    auth: 'none',
    responses: { 200: { type: 'object' } },
    handle: () => Promise.resolve({ status: 200, body: (document ??= managementDocument(routes())) }),
  });
}

function operation(route: ApiRoute): Json {
  const { method, path, summary, tag, auth, body, isBodyOptional = false, responses, problems = [] } = route;
  const codes = [
    ...COMMON,
    ...(auth === 'none' ? [] : CALLER_PROBLEMS),
    ...(auth === 'session' ? ['session_required' as const] : []),
    ...(method === 'GET' ? [] : ['cross_site' as const]),
    ...(body === undefined ? [] : BODY_PROBLEMS),
    ...(route.query === undefined ? [] : ['invalid_request' as const]),
    ...(path.includes('{') ? ['not_found' as const] : []),
    ...(route.needsIfMatch === true ? ['stale' as const, 'precondition_required' as const] : []),
    ...problems,
  ];
  const parameters = parametersOf(route);
  return {
    operationId: [
      method.toLowerCase(),
      ...path
        .replace('/api/v1', '')
        .split(/[^\w]+/)
        .filter((part) => part !== ''),
    ].join('_'),
    summary,
    tags: [tag],
    ...securityOf(auth),
    ...(parameters.length > 0 ? { parameters } : {}),
    ...(body === undefined
      ? {}
      : { requestBody: { required: !isBodyOptional, content: { 'application/json': { schema: named(body) } } } }),
    responses: {
      ...Object.fromEntries(Object.entries(responses).map(([status, schema]) => [status, responseOf(schema)])),
      ...problemResponses(codes),
    },
  };
}

function securityOf(auth: ApiRoute['auth']): Json {
  if (auth === 'none') return { security: [] };
  return auth === 'session' ? { security: [{ session: [] }] } : {};
}

function parametersOf({ method, path, query, auth, needsIfMatch = false }: ApiRoute): Json[] {
  const inPath = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    schema: { type: 'string', minLength: 1 },
  }));
  const inQuery = Object.entries(query?.properties ?? {}).map(([name, schema]) => ({
    name,
    in: 'query',
    required: query?.required?.includes(name) ?? false,
    schema,
  }));
  const headers = [
    ...(needsIfMatch
      ? [
          {
            name: 'If-Match',
            in: 'header',
            required: true,
            description: 'Current ETag of the object',
            schema: { type: 'string' },
          },
        ]
      : []),
    ...(method === 'POST' && auth !== 'none'
      ? [
          {
            name: 'Idempotency-Key',
            in: 'header',
            required: false,
            description: 'For 24 h an equal request gets the same response, with secrets null and replayed true',
            schema: { type: 'string', maxLength: 200 },
          },
        ]
      : []),
  ];
  return [...inPath, ...inQuery, ...headers];
}

function responseOf(schema: ApiRoute['responses'][number]): Json {
  const headers = { 'X-Request-Id': { schema: { type: 'string' } } };
  if (schema === null) return { description: 'No content', headers };
  if (typeof schema === 'string')
    return { description: 'Success', headers, content: { [schema]: { schema: { type: 'string' } } } };
  return { description: 'Success', headers, content: { 'application/json': { schema: named(schema) } } };
}

function problemResponses(codes: readonly ProblemCode[]): Json {
  const statuses = [...new Set(codes.map((code) => PROBLEMS[code].status))].sort((a, b) => a - b);
  return Object.fromEntries(
    statuses.map((status) => [
      status,
      {
        description: [...new Set(codes)].filter((code) => PROBLEMS[code].status === status).join(', '),
        content: { 'application/problem+json': { schema: named(objects.Problem) } },
      },
    ]),
  );
}

/** Returns a reference to a named schema. In a page, references the schema of the items. */
function named(schema: unknown): unknown {
  const name = COMPONENTS.get(schema);
  if (name !== undefined) return { $ref: `#/components/schemas/${name}` };
  const { properties } = schema as { properties?: { data?: { items?: unknown } } };
  const items = properties?.data?.items;
  return COMPONENTS.has(items)
    ? { ...(schema as object), properties: { ...properties, data: { ...properties?.data, items: named(items) } } }
    : schema;
}
