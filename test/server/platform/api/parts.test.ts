import { AttemptLimiter } from '../../../../server/platform/api/attempt-limiter';
import { ifMatchOf } from '../../../../server/platform/api/etag';
import { input, list, oneOf, orNull, record } from '../../../../server/platform/api/json-schema';
import { pageOf, pageOfRows } from '../../../../server/platform/api/paging';
import { ApiProblem, PROBLEMS, renderProblem, toProblem } from '../../../../server/platform/api/problem';
import { parseQuery } from '../../../../server/platform/api/query';
import { type ApiRoute } from '../../../../server/platform/api/route';
import { Router } from '../../../../server/platform/api/router';
import type { Schema } from '../../../../server/platform/api/schema';
import { checkValue } from '../../../../server/platform/api/validate';
import { AccessError } from '../../../../server/access';
import { ApiError } from '../../../../server/base/errors';
import { ServiceError } from '../../../../server/platform/store/errors';
import { fakeClock } from '../../access/support';

const route = (method: ApiRoute['method'], path: string): ApiRoute => ({
  method,
  path,
  summary: path,
  tag: 'test',
  auth: 'any',
  responses: {},
  handle: () => Promise.resolve({ status: 204 }),
});

describe('the router', () => {
  const routes = [
    route('GET', '/a'),
    route('POST', '/a'),
    route('GET', '/a/{id}'),
    route('GET', '/a/fixed'),
    route('DELETE', '/a/{id}'),
    route('GET', '/a/{id}/b/{n}'),
    route('POST', '/a/{other}/b/{m}'),
    route('GET', '/a/fixed/c'),
    route('GET', '/a/{id}/d'),
  ];
  const router = new Router(routes);
  const find = (method: string, path: string): string => {
    const match = router.find(path);
    const found = match?.routes.get(method);
    return found === undefined
      ? `none of ${[...(match?.routes.keys() ?? [])].join(',')}`
      : `${found.path} ${JSON.stringify(match!.paramsOf(found))}`;
  };

  test('matches parameters in any position, and prefers literal segments', () => {
    expect(find('GET', '/a')).toBe('/a {}');
    expect(find('GET', '/a/fixed')).toBe('/a/fixed {}');
    expect(find('GET', '/a/x')).toBe('/a/{id} {"id":"x"}');
    expect(find('GET', '/a/x/b/2')).toBe('/a/{id}/b/{n} {"id":"x","n":"2"}');
    expect(find('POST', '/a/x/b/2')).toBe('/a/{other}/b/{m} {"other":"x","m":"2"}');
    expect(find('GET', '/a/fixed/c')).toBe('/a/fixed/c {}');
    // The literal branch has no such child, so the parameter branch is tried.
    expect(find('GET', '/a/fixed/d')).toBe('/a/{id}/d {"id":"fixed"}');
  });

  test('finds all methods of a path and decodes segments', () => {
    expect(find('PUT', '/a')).toBe('none of GET,POST');
    expect(find('GET', '/a/%E2%9C%93%2Fx')).toBe('/a/{id} {"id":"✓/x"}');
    for (const path of ['/', '/b', '/a/', '/a//b/1', '/a/%ZZ', '/a/x/b', '//a', '/A', '/a/x/b/1/'])
      expect([path, router.find(path)]).toEqual([path, undefined]);
  });

  test('refuses duplicate routes', () => {
    expect(() => new Router([route('GET', '/a/{id}'), route('GET', '/a/{name}')])).toThrow(
      'duplicate route GET /a/{name}',
    );
  });
});

describe('values', () => {
  const schema = input(
    {
      name: { type: 'string', minLength: 1, maxLength: 5 },
      type: oneOf(['a', 'b']),
      budget: orNull(input({ tokens: { type: 'integer', minimum: 1 } }, 'tokens')),
      at: { type: 'string', format: 'date-time' },
      env: record({ type: 'string' }, '^[A-Z]+$'),
      items: list({ type: 'integer' }, { maxItems: 2 }),
    },
    'name',
  ) as Schema;
  const errorsOf = async (value: unknown): Promise<unknown> =>
    checkValue(schema, value).then(
      () => 'fits',
      (error: ApiProblem) => Object.fromEntries(error.errors.map(({ pointer, message }) => [pointer, message])),
    );

  test.each<[unknown, unknown]>([
    [{ name: 'a' }, 'fits'],
    [{ name: 'a', budget: null, type: 'b', at: '2030-01-31T00:00:00Z', env: { A: 'x' }, items: [1] }, 'fits'],
    [{}, { '/name': 'expected a string of 1 to 5 characters, but it is missing' }],
    [{ name: '' }, { '/name': 'expected a string of 1 to 5 characters, got a string of 0 characters' }],
    [
      { name: 'a', owner_id: 'x', 'a/b~': 1 },
      { '/owner_id': 'unknown field', '/a~1b~0': 'unknown field' },
    ],
    [{ name: 'a', type: 'sk-secret' }, { '/type': 'expected one of a, b, got a string of 9 characters' }],
    [{ name: 'a', budget: { tokens: 0 } }, { '/budget/tokens': 'expected an integer of 1 or more, got 0' }],
    [{ name: 'a', budget: {} }, { '/budget/tokens': 'expected an integer of 1 or more, but it is missing' }],
    [{ name: 'a', budget: 5 }, { '/budget': 'expected an object, or null, got 5' }],
    [
      { name: 'a', at: 'yesterday' },
      { '/at': 'expected a time such as 2030-01-31T00:00:00Z, got a string of 9 characters' },
    ],
    [{ name: 'a', items: [1, 2, 3] }, { '/items': 'expected an array of 0 to 2 items, got an array of 3' }],
    [{ name: 'a', items: [1, 'x'] }, { '/items/1': 'expected an integer, got a string of 1 character' }],
    [5, { '': 'expected an object, got 5' }],
    [null, { '': 'expected an object, got null' }],
  ])('%j', async (value, expected) => expect(await errorsOf(value)).toEqual(expected));

  test('describes each variant of a tagged union', async () => {
    const choice = {
      anyOf: [
        input({ type: { const: 'none' } }, 'type'),
        input({ type: { const: 'key' }, key: { type: 'string' } }, 'type', 'key'),
      ],
    } as Schema;
    const schemaOf = input({ auth: choice }) as Schema;
    const detailOf = (auth: unknown) =>
      checkValue(schemaOf, { auth }).then(
        () => 'fits',
        (error: ApiProblem) => error.message,
      );
    const wanted = '/auth: expected an object with type "none", or an object with type "key" and key, got ';
    expect([
      await detailOf({ type: 'none' }),
      await detailOf('none'),
      await detailOf(5),
      await detailOf({ type: 'key', key: 'k' }),
    ]).toEqual(['fits', `${wanted}a string of 4 characters`, `${wanted}5`, 'fits']);
    for (const auth of [{}, { type: 'session' }, { type: 'key' }])
      expect([auth, await detailOf(auth)]).toEqual([auth, expect.stringMatching(/"none"|"key"|key/)]);
  });

  test('reports invalid property names', async () => {
    expect(await errorsOf({ name: 'a', env: { a: 'x' } })).toEqual({
      '/env/a': 'expected a name that matches ^[A-Z]+$',
    });
  });

  test('truncates unknown names', async () => {
    expect(
      Object.keys((await errorsOf({ name: 'a', ['x'.repeat(59)]: 1, env: { ['y'.repeat(59)]: 'x' } })) as object),
    ).toEqual([`/${'x'.repeat(20)}…`, `/env/${'y'.repeat(20)}…`]);
  });

  test('reports a limited number of errors', async () => {
    const many = Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`f${i}`, 1]));
    expect(Object.keys((await errorsOf({ name: 'a', ...many })) as object)).toHaveLength(8);
  });
});

describe('queries', () => {
  const schema = input({
    limit: { type: 'integer', minimum: 1, maximum: 100, default: 50 },
    q: { type: 'string', maxLength: 3 },
    all: { type: 'boolean' },
  }) as Schema;
  const parse = (text: string): Promise<unknown> =>
    parseQuery(schema, text).catch((error: ApiProblem) => error.message);

  test.each<[string, unknown]>([
    ['', { limit: 50 }],
    ['limit=7&q=a%20b&all=true', { limit: 7, q: 'a b', all: true }],
    ['limit=0', '?limit: expected an integer from 1 to 100, got 0'],
    ['limit=x', '?limit: expected an integer from 1 to 100, got a string of 1 character'],
    ['limit=1e1', '?limit: expected an integer from 1 to 100, got a string of 3 characters'],
    ['all=yes', '?all: expected a boolean, got a string of 3 characters'],
    ['q=abcd', '?q: expected a string of 0 to 3 characters, got a string of 4 characters'],
    ['q=a&q=b', '?q: expected once, got 2 times'],
    ['foo=1', '?foo: unknown parameter'],
    ['__proto__=1', '?__proto__: unknown parameter'],
  ])('%s', async (text, expected) => expect(await parse(text)).toEqual(expected));

  test('truncates unknown parameter names', async () =>
    expect(await parse(`${'x'.repeat(500)}=1`)).toBe(`?${'x'.repeat(20)}…: unknown parameter`));

  test('refuses parameters on a route without a query', async () => {
    await expect(parseQuery(undefined, 'a=1')).rejects.toMatchObject({ code: 'invalid_request' });
    expect(await parseQuery(undefined, '')).toEqual({});
  });
});

test('If-Match is one strong ETag', () => {
  const of = (value?: string): unknown => {
    try {
      return ifMatchOf({ headers: value === undefined ? [] : [['if-match', value]] });
    } catch (error) {
      return (error as ApiProblem).code;
    }
  };
  expect([of(), of('*'), of('"7"'), of('7'), of('W/"7"'), of('"7", "8"'), of('"x"')]).toEqual([
    undefined,
    undefined,
    7,
    'stale',
    'stale',
    'stale',
    'stale',
  ]);
});

test('a page continues after the previous one', () => {
  const items = ['a', 'b', 'c', 'd', 'e'];
  const self = (item: string): string => item;
  expect(pageOf(items, { limit: 2 }, self)).toEqual({ data: ['a', 'b'], next: 'b' });
  expect(pageOf(items, { limit: 3, after: 'b' }, self)).toEqual({ data: ['c', 'd', 'e'], next: null });
  expect(pageOf([], { limit: 2 }, self)).toEqual({ data: [], next: null });
  expect(() => pageOf(items, { limit: 2, after: 'x' }, self)).toThrow('?after');
  expect(pageOfRows([1, 2, 3], 2, String, (row) => row * 10)).toEqual({ data: [10, 20], next: '2' });
  expect(pageOfRows([1, 2], 2, String, (row) => row)).toEqual({ data: [1, 2], next: null });
});

describe('problems', () => {
  test('have a status for each code and hide internal details', () => {
    for (const { status } of Object.values(PROBLEMS)) expect(status).toBeGreaterThanOrEqual(400);
    expect(toProblem(new ServiceError('not_found', 'x'))).toMatchObject({
      status: 404,
      code: 'not_found',
      message: 'x',
    });
    expect(toProblem(new ServiceError('too_many_attempts', 'try again in 60 s'))).toMatchObject({
      status: 429,
      headers: { 'Retry-After': '60' },
    });
    expect(toProblem(new AccessError('stale', 'x'))).toMatchObject({ status: 412 });
    for (const full of [
      new Error('database or disk is full'),
      new AccessError('database_error', 'could not extend file: No space left on device'),
      new Error('ENOSPC: no space left on device, write'),
    ]) {
      expect(toProblem(full)).toMatchObject({
        status: 507,
        code: 'storage_full',
        message: expect.stringContaining('Nothing was changed'),
      });
    }
    expect(toProblem(new ApiError('request_too_large', 'x'))).toMatchObject({ status: 413 });
    for (const own of [
      new Error('select * from secrets'),
      new AccessError('database_error', 'select * from secrets'),
      'thrown',
    ]) {
      const problem = toProblem(own);
      expect(problem.status).toBeGreaterThanOrEqual(500);
      expect(renderProblem(problem, 'r')).not.toContain('secrets');
      expect(problem.cause).toBe(own);
    }
  });

  test('are RFC 9457 objects', () => {
    const problem = new ApiProblem('invalid_request', 'd', { errors: [{ pointer: '/a', message: 'm' }] });
    expect(JSON.parse(renderProblem(problem, 'r1'))).toEqual({
      type: 'urn:capstan:problem:invalid_request',
      title: PROBLEMS.invalid_request.title,
      status: 400,
      detail: 'd',
      code: 'invalid_request',
      errors: [{ pointer: '/a', message: 'm' }],
      request_id: 'r1',
    });
  });
});

test('counts attempts by address, IPv6 by /64, and forgets them gradually', () => {
  const clock = fakeClock();
  const limiter = new AttemptLimiter(3, clock.now);
  const fail = (source: string): string => {
    try {
      limiter.check(source);
      limiter.count(source);
      return 'tried';
    } catch (error) {
      return `wait ${(error as ApiProblem).headers['Retry-After']}`;
    }
  };
  expect(
    ['2001:db8::1', '2001:db8::2', '2001:db8:0:0:5::', '2001:db8::3', '2001:db8:1::1', '192.0.2.1'].map(fail),
  ).toEqual(['tried', 'tried', 'tried', 'wait 20', 'tried', 'tried']);
  clock.advance(20_000);
  expect([fail('2001:db8::9'), fail('2001:db8::9')]).toEqual(['tried', 'wait 20']);
  limiter.forgive('2001:db8::9');
  expect([fail('2001:db8::9'), fail('2001:db8::9')]).toEqual(['tried', 'wait 20']);
  for (let i = 0; i < 9; i++) limiter.forgive('192.0.2.1');
  expect(Array.from({ length: 4 }, () => fail('192.0.2.1'))).toEqual(['tried', 'tried', 'tried', 'wait 20']);
});
