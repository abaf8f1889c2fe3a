import { CONTAINER_EVENTS, CONTAINER_STATES, CONTAINER_TRANSITIONS } from '../../../server/service/container-state';
import {
  type DeploymentFacts,
  deploymentState,
  DEPLOYMENT_STATES,
  urlBehaviour,
} from '../../../server/service/deployment-state';
import {
  command,
  DEFAULT_CRASH_POLICY,
  exited,
  fail,
  NEW_VERSION,
  retryDelayMs,
  signal,
  type VersionLife,
} from '../../../server/service/version-life';
import {
  isComingUp,
  isInactive,
  isServing,
  VERSION_COMMANDS,
  VERSION_SIGNALS,
  VERSION_STATES,
  VERSION_TRANSITIONS,
  type VersionEvent,
  type VersionState,
} from '../../../server/service/version-state';

const NOW = 1_800_000_000_000;
const MINUTE = 60_000;
const at = (state: VersionState, more: Partial<VersionLife> = {}): VersionLife => ({ ...NEW_VERSION, state, ...more });

/** The page's "Leaves to", and stopping on the way up: a version that comes up can be stopped. */
const LEAVES_TO: Record<VersionState, VersionState[]> = {
  queued: ['preparing', 'stopped', 'error'],
  preparing: ['starting', 'error', 'stopping'],
  starting: ['running', 'backoff', 'error', 'stopping'],
  running: ['degraded', 'idle', 'stopping', 'backoff'],
  degraded: ['running', 'backoff', 'stopping'],
  idle: ['queued', 'stopping'],
  backoff: ['starting', 'error', 'stopping'],
  stopping: ['stopped'],
  stopped: ['queued'],
  error: ['queued'],
};

describe('the table of a version', () => {
  test.each(VERSION_STATES)('%s leaves to what the specification lists', (state) => {
    expect([...new Set(Object.values(VERSION_TRANSITIONS[state]))].sort()).toEqual([...LEAVES_TO[state]].sort());
  });

  test('every state is reached, can be left, and comes to rest when it is told to', () => {
    const reached = new Set<VersionState>([
      'queued',
      ...VERSION_STATES.flatMap((state) => Object.values(VERSION_TRANSITIONS[state])),
    ]);
    expect([...reached].sort()).toEqual([...VERSION_STATES].sort());
    for (const state of VERSION_STATES) {
      let current = state;
      for (let steps = 0; !isInactive(current) && steps < 3; steps++)
        current = VERSION_TRANSITIONS[current].stop ?? VERSION_TRANSITIONS[current].ended ?? current;
      expect([state, isInactive(current)]).toEqual([state, true]);
    }
  });

  test('each state is one thing', () => {
    for (const state of VERSION_STATES)
      expect([state, [isInactive, isServing, isComingUp].filter((is) => is(state)).length]).toEqual([
        state,
        ['idle', 'backoff', 'stopping'].includes(state) ? 0 : 1,
      ]);
  });
});

describe('every event in every state', () => {
  const apply = (life: VersionLife, event: VersionEvent): VersionLife => {
    if ((VERSION_COMMANDS as readonly string[]).includes(event)) return command(life, event as 'stop', NOW);
    if (event === 'exited') return exited(life, { exitCode: 1 }, NOW);
    if (event === 'prepareFailed' || event === 'queueExpired' || event === 'startExpired')
      return fail(life, event, { reason: 'start_timeout', message: 'm' }, NOW);
    return signal(life, event as 'ready', NOW);
  };
  const cases = VERSION_STATES.flatMap((state) =>
    [...VERSION_COMMANDS, ...VERSION_SIGNALS.filter((name) => name !== 'giveUp')].map(
      (event): [VersionState, VersionEvent] => [state, event],
    ),
  );

  test.each(cases)('%s, %s', (state, event) => {
    const life = at(state, { numExits: 1, startedAt: 5, readyAt: 6 });
    const expected = VERSION_TRANSITIONS[state][event];
    const isCommand = (VERSION_COMMANDS as readonly string[]).includes(event);
    if (expected === undefined && isCommand)
      expect(() => apply(life, event)).toThrow(
        expect.objectContaining({
          code: 'wrong_state',
          message: expect.stringMatching(`that is ${state} cannot ${event}: expected `) as string,
        }) as Error,
      );
    else if (expected === undefined) expect(apply(life, event)).toBe(life);
    else {
      const after = apply(life, event);
      expect(after.state).toBe(expected);
      expect(after.reason === null).toBe(expected !== 'error' && expected !== 'backoff');
      expect(after.retryAt === null).toBe(expected !== 'backoff');
      if (isInactive(expected)) expect(after.endedAt).toBe(NOW);
    }
    // What was given is never changed.
    expect(life).toEqual(at(state, { numExits: 1, startedAt: 5, readyAt: 6 }));
  });
});

describe('a life', () => {
  test('from the queue to readiness and to its end', () => {
    let life = signal(NEW_VERSION, 'granted', NOW);
    life = signal(life, 'started', NOW + 1);
    life = signal(life, 'ready', NOW + 2);
    life = signal(life, 'replicaLost', NOW + 3);
    life = signal(life, 'ready', NOW + 4);
    expect(life).toMatchObject({ state: 'running', startedAt: NOW + 1, readyAt: NOW + 2 });
    life = signal(command(life, 'stop', NOW + 5), 'ended', NOW + 6);
    expect(life).toMatchObject({ state: 'stopped', endedAt: NOW + 6 });
    expect(command(life, 'start', NOW + 7)).toEqual(NEW_VERSION);
  });

  test('of crashes: longer and longer waits, then an end with its reason', () => {
    let life = at('starting');
    const waits: number[] = [];
    for (let i = 1; i < DEFAULT_CRASH_POLICY.maxExits; i++) {
      life = exited(life, { exitCode: 3 }, NOW);
      expect(life).toMatchObject({ state: 'backoff', numExits: i, exitCode: 3 });
      waits.push((life.retryAt ?? 0) - NOW);
      life = signal(life, 'retry', NOW);
      expect(life).toMatchObject({ state: 'starting', retryAt: null, startedAt: NOW, readyAt: null });
    }
    expect(waits).toEqual([10_000, 20_000, 40_000, 80_000]);
    expect(exited(life, { exitCode: 3 }, NOW)).toMatchObject({
      state: 'error',
      reason: 'crash_loop',
      message: 'ended 5 times, the last time with exit code 3',
      exitCode: 3,
      retryAt: null,
      endedAt: NOW,
    });
    expect(exited(life, { exitCode: null }, NOW).message).toContain('with a signal');
    expect(exited(life, { exitCode: 137, cause: 'out_of_memory' }, NOW)).toMatchObject({ reason: 'out_of_memory' });
    expect(exited(life, { exitCode: 1, cause: 'gpu_out_of_memory' }, NOW)).toMatchObject({
      reason: 'gpu_out_of_memory',
    });
  });

  test('the wait never grows beyond five minutes', () => {
    expect([1, 2, 5, 6, 7, 60].map((exits) => retryDelayMs(exits))).toEqual([
      10_000, 20_000, 160_000, 300_000, 300_000, 300_000,
    ]);
  });

  test('ten minutes of health make earlier crashes forgotten, a second less does not', () => {
    const healthy = at('running', { numExits: 4, readyAt: NOW });
    expect(exited(healthy, { exitCode: 1 }, NOW + 10 * MINUTE)).toMatchObject({ state: 'backoff', numExits: 1 });
    expect(exited(healthy, { exitCode: 1 }, NOW + 10 * MINUTE - 1000)).toMatchObject({
      state: 'error',
      reason: 'crash_loop',
    });
  });

  test('being slow to start is no crash', () => {
    const life = fail(
      at('starting', { numExits: 1 }),
      'startExpired',
      { reason: 'wrong_port', message: 'it listens on port 8080 and not on 80' },
      NOW,
    );
    expect(life).toMatchObject({
      state: 'error',
      reason: 'wrong_port',
      message: 'it listens on port 8080 and not on 80',
      numExits: 1,
    });
  });

  test('stopping wins over everything that comes late', () => {
    const stopping = command(at('backoff', { retryAt: NOW + 5 }), 'stop', NOW);
    expect(stopping).toMatchObject({ state: 'stopping', retryAt: null });
    expect(signal(stopping, 'retry', NOW)).toBe(stopping);
    expect(signal(stopping, 'ready', NOW)).toBe(stopping);
    expect(exited(stopping, { exitCode: 1 }, NOW)).toBe(stopping);
  });
});

describe('a deployment', () => {
  const state = (facts: Partial<DeploymentFacts>) => deploymentState({ desired: 'running', wasReady: true, ...facts });
  const active = (of: VersionState, isWaking = false) => ({ active: { state: of, isWaking } });

  test.each<[Partial<DeploymentFacts>, string]>([
    [{ wasReady: false }, 'pending'],
    [{ wasReady: false, ...active('backoff') }, 'pending'],
    [{ wasReady: false, ...active('error') }, 'failed'],
    [{ wasReady: false, ...active('queued') }, 'pending'],
    [{ wasReady: false, ...active('preparing') }, 'pending'],
    [{ wasReady: false, ...active('starting') }, 'pending'],
    [active('running'), 'running'],
    [active('degraded'), 'degraded'],
    [active('backoff'), 'degraded'],
    [active('idle'), 'scaled_to_zero'],
    [active('error'), 'failed'],
    [active('queued', true), 'scaled_to_zero'],
    [active('starting', true), 'scaled_to_zero'],
    [active('queued'), 'pending'],
    [active('stopping'), 'stopping'],
    [active('stopped'), 'paused'],
    [{ ...active('running'), target: { state: 'starting' } }, 'updating'],
    [{ ...active('degraded'), target: { state: 'queued' } }, 'updating'],
    [{ ...active('idle'), target: { state: 'queued' } }, 'updating'],
    [{ ...active('stopped'), target: { state: 'starting' } }, 'updating'],
    [{ wasReady: false, ...active('error'), target: { state: 'starting' } }, 'pending'],
    [{ wasReady: false, target: { state: 'queued' } }, 'pending'],
    [{ ...active('running'), target: { state: 'error' } }, 'update_failed'],
    [{ ...active('stopped'), target: { state: 'error' } }, 'failed'],
    [{ ...active('running'), target: { state: 'stopped' } }, 'update_failed'],
    [{ desired: 'paused', ...active('running') }, 'stopping'],
    [{ desired: 'paused', ...active('stopping') }, 'stopping'],
    [{ desired: 'paused', ...active('stopped') }, 'paused'],
    [{ desired: 'paused', ...active('error') }, 'paused'],
    [{ desired: 'paused' }, 'paused'],
    [{ desired: 'deleted', ...active('running') }, 'deleting'],
  ])('%j is %s', (facts, expected) => expect(state(facts)).toBe(expected));

  test('every combination has a state, and a URL that says one thing', () => {
    for (const desired of ['running', 'paused', 'deleted'] as const) {
      for (const of of [undefined, ...VERSION_STATES]) {
        for (const to of [undefined, ...VERSION_STATES]) {
          for (const flag of [true, false]) {
            const facts = {
              desired,
              wasReady: flag,
              ...(of === undefined ? {} : active(of, flag)),
              ...(to === undefined ? {} : { target: { state: to } }),
            };
            const found = deploymentState(facts);
            expect(DEPLOYMENT_STATES).toContain(found);
            const canServe = of !== undefined && isServing(of);
            const behaviour = urlBehaviour(found, canServe);
            // What serves is never refused unless somebody wants it to end.
            if (canServe && desired === 'running') expect([facts, behaviour.type]).toEqual([facts, 'serve']);
            if (desired !== 'running') expect(behaviour.type).toBe('refuse');
          }
        }
      }
    }
  });

  test.each([
    ['pending', false, 503, 'deployment_not_ready', 5],
    ['updating', false, 503, 'deployment_not_ready', 5],
    ['degraded', false, 503, 'deployment_not_ready', 5],
    ['paused', true, 503, 'deployment_paused', null],
    ['stopping', true, 503, 'deployment_stopping', null],
    ['deleting', true, 404, 'deployment_not_found', null],
    ['failed', false, 503, 'deployment_failed', null],
  ] as const)('%s refuses', (of, canServe, status, code, retryAfterS) =>
    expect(urlBehaviour(of, canServe)).toEqual({ type: 'refuse', status, code, retryAfterS }),
  );

  test('sleeping, it holds a request', () => expect(urlBehaviour('scaled_to_zero', false)).toEqual({ type: 'hold' }));
});

describe('a training container', () => {
  test('leaves every state, and late news change nothing', () => {
    expect(CONTAINER_STATES.filter((state) => Object.keys(CONTAINER_TRANSITIONS[state]).length === 0)).toEqual([]);
    const reached = new Set(CONTAINER_STATES.flatMap((state) => Object.values(CONTAINER_TRANSITIONS[state])));
    expect([...reached].sort()).toEqual([...CONTAINER_STATES].sort());
    for (const state of CONTAINER_STATES)
      for (const event of Object.keys(CONTAINER_TRANSITIONS[state])) expect(CONTAINER_EVENTS).toContain(event);
    // Stopping ends, whatever happens to what runs.
    expect(CONTAINER_TRANSITIONS.stopping).toEqual({ ended: 'stopped', failed: 'stopped' });
  });
});
