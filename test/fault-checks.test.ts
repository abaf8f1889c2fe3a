/** The checks of benchmarks/faults.ts find what they look for. */
import { mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { checkBroken, checkKeys, checkVersions } from '../benchmarks/faults/change-checks';
import { judge } from '../benchmarks/faults/chats';
import type { Received } from '../benchmarks/faults/http';
import type { WrittenKey } from '../benchmarks/faults/key-writer';
import { Ledger } from '../benchmarks/faults/ledger';
import { type Management, outcomeOf } from '../benchmarks/faults/management';
import { filesWithSecret, remains } from '../benchmarks/faults/remains';
import { Random } from '../server/bench/random';

beforeEach(() => {
  jest.spyOn(console, 'error').mockImplementation(() => {});
});

function received(status: number, body: unknown, isComplete = true): Received {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  return { status, headers: {}, text, json: typeof body === 'string' ? undefined : body, isComplete, error: 'reset' };
}
const answer = (content: string) => ({ choices: [{ message: { content } }] });
const chunk = (content: string) => `data: ${JSON.stringify({ choices: [{ delta: { content } }] })}\n\n`;
const failure = `data: ${JSON.stringify({ error: { code: 'upstream_unavailable' } })}\n\n`;
const DONE = 'data: [DONE]\n\n';

describe('an answer', () => {
  test.each<[string, Received, string]>([
    ['the expected one', received(200, answer('1 2 3')), 'right'],
    ['another one', received(200, answer('1 2 4')), 'wrong'],
    ['a shorter one', received(200, answer('1 2')), 'wrong'],
    ['not an answer', received(200, {}), 'wrong'],
    ['cut by the connection', received(200, '{"choices": [', false), 'failed'],
    ['an error with a code', received(503, { error: { code: 'starting' } }), 'failed'],
    ['an error without a code', received(503, 'no'), 'wrong'],
    ['a refused key', received(401, { error: { code: 'invalid_api_key' } }), 'wrong'],
    ['no response', received(0, '', false), 'failed'],
  ])('%s', (_name, response, verdict) => expect(judge(response, false, '1 2 3').verdict).toBe(verdict));

  test.each<[string, Received, string]>([
    ['complete', received(200, `${chunk('1 ')}: comment\n\n${chunk('2 3')}${DONE}`), 'right'],
    ['with another text', received(200, chunk('1 2 4') + DONE), 'wrong'],
    ['too short', received(200, chunk('1 2') + DONE), 'wrong'],
    ['without its end', received(200, chunk('1 2 3')), 'wrong'],
    ['ended by an error event', received(200, chunk('1 2') + failure + DONE), 'failed'],
    ['wrong before an error event', received(200, chunk('2') + failure + DONE), 'wrong'],
    ['cut by the connection', received(200, `${chunk('1 2')}data: {"cho`, false), 'failed'],
    ['wrong before the connection broke', received(200, chunk('2'), false), 'wrong'],
  ])('a stream: %s', (_name, response, verdict) => expect(judge(response, true, '1 2 3').verdict).toBe(verdict));
});

test('only a complete 2xx is an acknowledgement, and a lost response leaves the change open', () => {
  expect(outcomeOf(received(201, {}))).toBe('acknowledged');
  expect(outcomeOf(received(204, ''))).toBe('acknowledged');
  expect(outcomeOf(received(412, {}))).toBe('refused');
  expect(outcomeOf(received(507, {}))).toBe('refused');
  expect(outcomeOf(received(503, {}))).toBe('unknown');
  expect(outcomeOf(received(200, '{', false))).toBe('unknown');
  expect(outcomeOf(received(0, '', false))).toBe('unknown');
});

test('an error is excused by a fault of its deployment that overlaps the request', async () => {
  const ledger = new Ledger();
  const beforeMs = performance.now();
  const end = ledger.excuse('pair');
  expect([ledger.isExcused('pair', performance.now()), ledger.isExcused('single', beforeMs)]).toEqual([true, false]);
  end();
  await new Promise(setImmediate);
  expect([ledger.isExcused('pair', beforeMs), ledger.isExcused('pair', performance.now() + 1)]).toEqual([true, false]);
});

describe('changes at the end', () => {
  const key = (more: Partial<WrittenKey> = {}): WrittenKey => ({
    id: 'key_1',
    isUserLevel: true,
    rev: 1,
    revoked: [],
    state: { name: 'one', state: 'active', secret: 'secret' },
    ...more,
  });
  const valid = new Set<string>();
  let server: Server;
  let url: string;
  beforeAll(async () => {
    server = createServer(({ headers: { authorization = '' } }, response) => {
      response.writeHead(valid.has(authorization.slice('Bearer '.length)) ? 200 : 401).end();
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  afterAll(() => server.close());
  const api = (rows: object[]) => ({ list: () => Promise.resolve(rows) }) as unknown as Management;

  async function problemsOf(rows: object[], written: WrittenKey, refused: string[] = []): Promise<number> {
    const ledger = new Ledger();
    const writer = { keys: [written], created: new Map([['one', true]]), refusedNames: new Set(refused) };
    const served = { name: 'single', id: 'dep_1', url, secrets: [] };
    await checkKeys(api(rows), ledger, served, writer, new Random(1));
    return ledger.numProblems;
  }
  const row = { id: 'key_1', name: 'one', state: 'active' };
  const disabled = { name: 'one', state: 'disabled', secret: 'secret' } as const;

  test.each<[string, object[], WrittenKey, string[], string[], number]>([
    ['as acknowledged', [row], key(), ['secret'], [], 0],
    ['lost', [], key(), ['secret'], [], 1],
    ['with another name', [{ ...row, name: 'two' }], key(), ['secret'], [], 1],
    ['in another state', [row], key({ state: disabled }), [], [], 1],
    ['open after a lost response, done', [{ ...row, state: 'disabled' }], key({ maybe: disabled }), [], [], 0],
    ['open after a lost response, not done', [row], key({ maybe: disabled }), ['secret'], [], 0],
    ['with a refused name', [row], key(), ['secret'], ['one'], 1],
    ['made twice', [row, { ...row, id: 'key_2' }], key(), ['secret'], [], 1],
    ['not accepted', [row], key(), [], [], 1],
    ['with a revoked secret that is accepted', [row], key({ revoked: ['old'] }), ['secret', 'old'], [], 1],
  ])('a key %s', async (_name, rows, written, secrets, refused, numProblems) => {
    valid.clear();
    for (const secret of secrets) valid.add(secret);
    expect(await problemsOf(rows, written, refused)).toBe(numProblems);
  });

  test('versions that are missing, and versions that were refused', async () => {
    const ledger = new Ledger();
    const outcomes = ['acknowledged', 'acknowledged', 'refused', 'unknown', 'unknown'] as const;
    const written = outcomes.map((outcome, i) => ({ deploymentId: 'dep_1', note: String(i), outcome }));
    await checkVersions(api([{ note: '0' }, { note: '2' }, { note: '3' }]), ledger, { written });
    expect(ledger.problems.map((text) => text.replace(/^.* s: /, ''))).toEqual([
      '1: acknowledged, but there are 0',
      '2: refused, but there are 1',
    ]);
  });

  test('deployments that are missing, and deployments that were deleted', async () => {
    const ledger = new Ledger();
    const written = new Map([
      ['made', { isCreated: true, isDeleted: false }],
      ['lost', { isCreated: true, isDeleted: false }],
      ['deleted', { isCreated: true, isDeleted: true }],
      ['open', { isCreated: false, isDeleted: false }],
    ]);
    await checkBroken(api([{ name: 'made' }, { name: 'deleted' }]), ledger, { written });
    expect(ledger.problems).toHaveLength(2);
  });
});

describe('what is left', () => {
  let folder: string;
  beforeEach(() => {
    folder = realpathSync(mkdtempSync(join(tmpdir(), 'capstan-remains-')));
    for (const name of ['data', 'tmp']) mkdirSync(join(folder, name));
  });
  afterEach(() => rmSync(folder, { recursive: true }));

  test('a socket, a temporary file, a file of the running service and a port', async () => {
    const server = createServer();
    await new Promise<void>((resolve) => server.listen(join(folder, 'data', 'replica.sock'), resolve));
    const other = createServer();
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
    const { port } = other.address() as AddressInfo;
    writeFileSync(join(folder, 'tmp', 'left'), '');
    writeFileSync(join(folder, 'data', 'service.json'), '');
    const [dataDir, tmpDir] = [join(folder, 'data'), join(folder, 'tmp')];
    const left = await remains({ folder, dataDir, tmpDir, port, replicaIds: new Set() });
    server.close();
    other.close();
    expect(left).toEqual(
      expect.arrayContaining([
        `socket ${join(dataDir, 'replica.sock')}`,
        'temporary file left',
        'file service.json',
        `port ${port}`,
      ]),
    );
  });

  test('a secret in a log', () => {
    writeFileSync(join(folder, 'data', 'a.log'), 'the key is sk-cap1_x');
    writeFileSync(join(folder, 'data', 'b.log'), 'the key is hidden');
    expect(filesWithSecret([folder], ['sk-cap1_x'])).toEqual([join(folder, 'data', 'a.log')]);
  });
});
