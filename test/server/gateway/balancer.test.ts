import { Balancer, type Choice } from '../../../server/gateway/balancer';
import { preferred, PrefixIndex, prefixOf } from '../../../server/gateway/prefix-index';
import { type Target, type TargetReplica, Targets } from '../../../server/gateway/targets';
import { formatLoad } from '../../../server/replica-headers';
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

test('one replica takes everything, and no prompt is looked at', () => {
  const { balancer, now } = setUp(1);
  const prefix = jest.fn();
  expect(balancer.choose(now, { bodyBytes: 10_000, prefix })).toMatchObject({
    reason: 'only',
    replica: { id: 'rep_0' },
  });
  expect(prefix).not.toHaveBeenCalled();
  expect(balancer.choose(now, { bodyBytes: 1, prefix, except: 'rep_0' })).toBeUndefined();
});

test('requests without a prompt go to the lightest', () => {
  const { ask, balancer } = setUp(3);
  const open = Array.from({ length: 9 }, () => ask());
  expect([0, 1, 2].map((i) => balancer.numOpen(`rep_${i}`))).toEqual([3, 3, 3]);
  open.filter(({ replica }) => replica.id === 'rep_1').forEach((choice) => choice.close());
  expect(ask().replica.id).toBe('rep_1');
});

test('a few long prompts weigh as much as many short ones', () => {
  const { ask } = setUp(2);
  const long = ask(Buffer.alloc(400_000, 'x'));
  const others = Array.from({ length: 20 }, () => ask(Buffer.alloc(10)));
  expect(others.every(({ replica }) => replica.id !== long.replica.id)).toBe(true);
});

test('what a prompt begins with brings it back to the same replica, whatever stands before the messages', () => {
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

test('the longest match goes first among those that are light enough', () => {
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

test('under load affinity is kept among the light ones and never makes a pile', () => {
  const { ask, balancer } = setUp(4);
  const prompts = Array.from({ length: 8 }, (_, i) => words(`tenant${i}-`, 300));
  let numMatched = 0;
  for (let i = 0; i < 400; i++) {
    const choice = ask(chat(`${prompts[i % 8]} ${i}`));
    if (choice.reason === 'prefix') numMatched++;
    // A quarter stays open: the load goes up and up.
    if (i % 4 !== 0) choice.close();
  }
  expect(numMatched).toBeGreaterThan(200);
  const counts = [0, 1, 2, 3].map((i) => balancer.numOpen(`rep_${i}`));
  expect(Math.max(...counts) - Math.min(...counts)).toBeLessThan(20);
});

test('one prompt that everybody sends does not stay with one replica once that is heavy', () => {
  const { ask, balancer } = setUp(2);
  const body = chat(words('same', 1_000));
  for (let i = 0; i < 40; i++) ask(body);
  const counts = [balancer.numOpen('rep_0'), balancer.numOpen('rep_1')];
  expect(Math.min(...counts)).toBeGreaterThan(10);
});

test('what nobody saw goes to a light one, not to whoever saw least', () => {
  const { ask } = setUp(2);
  const busy = ask(Buffer.alloc(200_000, 'x'));
  for (let i = 0; i < 10; i++) expect(ask(chat(words(`new${i}-`, 300))).replica.id).not.toBe(busy.replica.id);
});

test('gateways that have seen nothing agree on where a prompt goes', () => {
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

test("a replica's own word counts while it is fresh", () => {
  const { ask, balancer, advance } = setUp(2);
  ask().close();
  ask(Buffer.alloc(0), 'rep_0').close();
  balancer.report('rep_0', formatLoad({ open: 3, queuedPromptTokens: 50_000, freeBlocks: 10, numBlocks: 100 }));
  for (let i = 0; i < 5; i++) expect(ask().replica.id).toBe('rep_1');
  advance(10_000);
  expect(ask().replica.id).toBe('rep_0');
  balancer.report('rep_0', 'nonsense');
});

test('a replica that failed is left alone for a while, unless there is no other', () => {
  const { ask, balancer, advance } = setUp(2);
  ask().close();
  balancer.suspect('rep_0');
  expect([ask().replica.id, ask().replica.id, ask().replica.id]).toEqual(['rep_1', 'rep_1', 'rep_1']);
  expect(ask(Buffer.alloc(0), 'rep_1').replica.id).toBe('rep_0');
  advance(3_000);
  expect(ask().replica.id).toBe('rep_0');
});

test('a replica that left is chosen for no prompt any more', () => {
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

describe('the index of prefixes', () => {
  test('is bounded, and forgets what nobody asked for for longest', () => {
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

  test('takes work by the length of the prompt, up to a bound', () => {
    expect(prefixOf(Buffer.alloc(10_000_000, 'x'), 'd')).toHaveLength(128);
    expect(prefixOf(Buffer.alloc(255, 'x'), 'd')).toHaveLength(0);
  });

  test('moves few prompts when a replica comes', () => {
    const prefixes = Array.from({ length: 300 }, (_, i) => prefixOf(chat(words(`p${i}-`, 100)), 'd'));
    const moved = prefixes.filter((prefix) => preferred(prefix, replicas(4)).id !== preferred(prefix, replicas(5)).id);
    expect(moved.length).toBeGreaterThan(20);
    expect(moved.length).toBeLessThan(110);
  });
});
