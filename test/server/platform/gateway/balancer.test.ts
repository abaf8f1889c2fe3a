import { Balancer, type Choice } from '../../../../server/platform/gateway/balancer';
import { preferred, PrefixIndex, prefixOf } from '../../../../server/platform/gateway/prefix-index';
import { type Target, type TargetReplica, Targets } from '../../../../server/platform/gateway/targets';
import { formatLoad } from '../../../../server/http/replica-headers';
import { target } from './support';

const TIMES = { connectTimeoutMs: 1, firstByteTimeoutMs: 1, idleTimeoutMs: 1 };

function replicas(n: number): TargetReplica[] {
  return Array.from({ length: n }, (_, i) => ({
    id: `rep_${i}`,
    address: { type: 'unix', path: `/nowhere/${i}` },
    secret: 's',
    isBuiltin: true,
  }));
}

function chat(text: string, fields: object = {}): Buffer {
  return Buffer.from(JSON.stringify({ model: 'm', ...fields, messages: [{ role: 'user', content: text }] }));
}

const words = (seed: string, n: number): string => Array.from({ length: n }, (_, i) => `${seed}${i}`).join(' ');

function setUp(n: number): {
  balancer: Balancer;
  targets: Targets;
  now: Target;
  ask: (body?: Buffer, except?: string) => Choice;
  advance: (ms: number) => void;
} {
  const targets = new Targets();
  let nowMs = 1_000;
  const balancer = new Balancer(targets, { wake: () => {}, onOpenRequests: () => {} }, TIMES, { nowMs: () => nowMs });
  const now = target('s', replicas(n));
  targets.set(now);
  const ask = (body: Buffer = Buffer.alloc(0), except?: string) =>
    balancer.choose(targets.find('s')!, {
      bodyBytes: body.length,
      prefix: () => prefixOf(body, 'dep_s'),
      ...(except === undefined ? {} : { except }),
    })!;
  return {
    balancer,
    targets,
    now,
    ask,
    advance: (ms) => {
      nowMs += ms;
    },
  };
}

test('sends everything to a single replica without hashing the prompt', () => {
  const { balancer, now } = setUp(1);
  const prefix = jest.fn();
  expect(balancer.choose(now, { bodyBytes: 10_000, prefix })).toMatchObject({
    reason: 'only',
    replica: { id: 'rep_0' },
  });
  expect(prefix).not.toHaveBeenCalled();
  expect(balancer.choose(now, { bodyBytes: 1, prefix, except: 'rep_0' })).toBeUndefined();
});

test('sends requests without a prompt to the lightest replica', () => {
  const { ask, balancer } = setUp(3);
  const open = Array.from({ length: 9 }, () => ask());
  expect([0, 1, 2].map((i) => balancer.numOpen(`rep_${i}`))).toEqual([3, 3, 3]);
  open.filter(({ replica }) => replica.id === 'rep_1').forEach((choice) => choice.close());
  expect(ask().replica.id).toBe('rep_1');
});

test('weighs a few long prompts like many short ones', () => {
  const { ask } = setUp(2);
  const long = ask(Buffer.alloc(400_000, 'x'));
  const others = Array.from({ length: 20 }, () => ask(Buffer.alloc(10)));
  expect(others.every(({ replica }) => replica.id !== long.replica.id)).toBe(true);
});

test('sends a repeated prefix to the same replica, whatever precedes the messages', () => {
  const { ask } = setUp(4);
  const system = words('system', 400);
  const first = ask(chat(`${system} first`));
  first.close();
  for (let i = 0; i < 10; i++) {
    const again = ask(chat(`${system} question ${i}`, i % 2 === 0 ? {} : { temperature: i, seed: i }));
    expect([again.reason, again.replica.id]).toEqual(['prefix', first.replica.id]);
    expect(again.matched).toBeGreaterThan(10);
    again.close();
  }
});

test('prefers the longest match among the light replicas', () => {
  const { ask } = setUp(2);
  const shared = words('shared', 200);
  const a = ask(chat(`${shared} ${words('a', 300)}`));
  const b = ask(chat(`${shared} ${words('b', 300)}`), a.replica.id);
  expect(b.replica.id).not.toBe(a.replica.id);
  a.close();
  b.close();
  expect(ask(chat(`${shared} ${words('b', 300)} more`)).replica.id).toBe(b.replica.id);
  expect(ask(chat(`${shared} ${words('a', 300)} more`)).replica.id).toBe(a.replica.id);
});

test('keeps prefix affinity under load without overloading a replica', () => {
  const { ask, balancer } = setUp(4);
  const prompts = Array.from({ length: 8 }, (_, i) => words(`tenant${i}-`, 300));
  let numMatched = 0;
  for (let i = 0; i < 400; i++) {
    const choice = ask(chat(`${prompts[i % 8]} ${i}`));
    if (choice.reason === 'prefix') numMatched++;
    // A quarter of the requests stays open, so the load keeps rising.
    if (i % 4 !== 0) choice.close();
  }
  expect(numMatched).toBeGreaterThan(200);
  const counts = [0, 1, 2, 3].map((i) => balancer.numOpen(`rep_${i}`));
  expect(Math.max(...counts) - Math.min(...counts)).toBeLessThan(20);
});

test('moves a very common prompt to another replica once its replica is heavy', () => {
  const { ask, balancer } = setUp(2);
  const body = chat(words('same', 1_000));
  for (let i = 0; i < 40; i++) ask(body);
  const counts = [balancer.numOpen('rep_0'), balancer.numOpen('rep_1')];
  expect(Math.min(...counts)).toBeGreaterThan(10);
});

test('sends an unseen prompt to a light replica, not to the one with the fewest prefixes', () => {
  const { ask } = setUp(2);
  const busy = ask(Buffer.alloc(200_000, 'x'));
  for (let i = 0; i < 10; i++) expect(ask(chat(words(`new${i}-`, 300))).replica.id).not.toBe(busy.replica.id);
});

test('gateways without history choose the same replica for a prompt', () => {
  const choices = Array.from({ length: 2 }, () => {
    const { ask } = setUp(5);
    return Array.from({ length: 30 }, (_, i) => {
      const choice = ask(chat(words(`p${i}-`, 300)));
      choice.close();
      return choice.replica.id;
    });
  });
  expect(choices[0]).toEqual(choices[1]);
  expect(new Set(choices[0]).size).toBe(5);
});

test('uses a load report only while it is fresh', () => {
  const { ask, balancer, advance } = setUp(2);
  ask().close();
  ask(Buffer.alloc(0), 'rep_0').close();
  balancer.report('rep_0', formatLoad({ open: 3, queuedPromptTokens: 50_000, freeBlocks: 10, numBlocks: 100 }));
  for (let i = 0; i < 5; i++) expect(ask().replica.id).toBe('rep_1');
  advance(10_000);
  expect(ask().replica.id).toBe('rep_0');
  balancer.report('rep_0', 'nonsense');
});

test('avoids a failed replica for a while unless it is the only one', () => {
  const { ask, balancer, advance } = setUp(2);
  ask().close();
  balancer.suspect('rep_0');
  expect([ask().replica.id, ask().replica.id, ask().replica.id]).toEqual(['rep_1', 'rep_1', 'rep_1']);
  expect(ask(Buffer.alloc(0), 'rep_1').replica.id).toBe('rep_0');
  advance(3_000);
  expect(ask().replica.id).toBe('rep_0');
});

test('never chooses a removed replica for its prefix', () => {
  const { ask, targets } = setUp(3);
  const body = chat(words('p', 300));
  const first = ask(body);
  first.close();
  targets.set(
    target(
      's',
      replicas(3).filter(({ id }) => id !== first.replica.id),
    ),
  );
  const next = ask(body);
  expect(next.replica.id).not.toBe(first.replica.id);
  expect(next.reason).toBe('hash');
});

describe('the prefix index', () => {
  test('is bounded and evicts the least recently used prefixes', () => {
    const index = new PrefixIndex(100);
    const first = prefixOf(chat(words('first', 200)), 'd');
    index.add(first, 'rep_0');
    for (let i = 0; i < 50; i++) {
      index.add(prefixOf(chat(words(`p${i}-`, 200)), 'd'), 'rep_1');
      if (i < 5) index.add(first, 'rep_0');
    }
    expect(index.size).toBeLessThanOrEqual(100);
    expect(index.match(first).size).toBe(0);
  });

  test('keeps deployments apart', () => {
    const index = new PrefixIndex();
    index.add(prefixOf(chat(words('p', 300)), 'dep_1'), 'rep_0');
    expect(index.match(prefixOf(chat(words('p', 300)), 'dep_2')).size).toBe(0);
  });

  test('hashes at most a bounded part of the prompt', () => {
    expect(prefixOf(Buffer.alloc(10_000_000, 'x'), 'd')).toHaveLength(128);
    expect(prefixOf(Buffer.alloc(255, 'x'), 'd')).toHaveLength(0);
  });

  test('reassigns few prompts when a replica is added', () => {
    const prefixes = Array.from({ length: 300 }, (_, i) => prefixOf(chat(words(`p${i}-`, 100)), 'd'));
    const moved = prefixes.filter((prefix) => preferred(prefix, replicas(4)).id !== preferred(prefix, replicas(5)).id);
    expect(moved.length).toBeGreaterThan(20);
    expect(moved.length).toBeLessThan(110);
  });
});
