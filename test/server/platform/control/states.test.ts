import {
  CONTAINER_EVENTS,
  CONTAINER_STATES,
  CONTAINER_TRANSITIONS,
} from '../../../../server/platform/deployments/container-state';
import {
  type DeploymentFacts,
  deploymentState,
  DEPLOYMENT_STATES,
  urlBehaviour,
} from '../../../../server/platform/deployments/deployment-state';
import {
  command,
  DEFAULT_CRASH_POLICY,
  exited,
  fail,
  NEW_VERSION,
  retryDelayMs,
  signal,
  type VersionStatus,
} from '../../../../server/platform/control/version-status';
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
} from '../../../../server/platform/deployments/version-state';

const NOW = 1_800_000_000_000;
const MINUTE = 60_000;
const at = (state: VersionState, more: Partial<VersionStatus> = {}): VersionStatus => ({
  ...NEW_VERSION,
  state,
  ...more,
});

/** The column "Leaves to" of the specification, plus stopping a version that is starting. */
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

describe('transitions of a version', () => {
  test.each(VERSION_STATES)('%s leads to the states of the specification', (state) => {
    expect([...new Set(Object.values(VERSION_TRANSITIONS[state]))].sort()).toEqual([...LEAVES_TO[state]].sort());
  });

  test('every state is reachable and can be stopped', () => {
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

  test('each state is inactive, serving, starting or none of them', () => {
    for (const state of VERSION_STATES)
      expect([state, [isInactive, isServing, isComingUp].filter((is) => is(state)).length]).toEqual([
        state,
        ['idle', 'backoff', 'stopping'].includes(state) ? 0 : 1,
      ]);
  });
});

describe('every event in every state', () => {
  const apply = (status: VersionStatus, event: VersionEvent): VersionStatus => {
    if ((VERSION_COMMANDS as readonly string[]).includes(event)) return command(status, event as 'stop', NOW);
    if (event === 'exited') return exited(status, { exitCode: 1 }, NOW);
    if (event === 'prepareFailed' || event === 'queueExpired' || event === 'startExpired')
      return fail(status, event, { reason: 'start_timeout', message: 'm' }, NOW);
    return signal(status, event as 'ready', NOW);
  };
  const cases = VERSION_STATES.flatMap((state) =>
    [...VERSION_COMMANDS, ...VERSION_SIGNALS.filter((name) => name !== 'giveUp')].map(
      (event): [VersionState, VersionEvent] => [state, event],
    ),
  );

  test.each(cases)('%s, %s', (state, event) => {
    const status = at(state, { numExits: 1, startedAt: 5, readyAt: 6 });
    const expected = VERSION_TRANSITIONS[state][event];
    const isCommand = (VERSION_COMMANDS as readonly string[]).includes(event);
    if (expected === undefined && isCommand)
      expect(() => apply(status, event)).toThrow(
        expect.objectContaining({
          code: 'wrong_state',
          message: expect.stringMatching(`^${event}: expected a version in state [a-z or]+, got ${state}$`) as string,
        }) as Error,
      );
    else if (expected === undefined) expect(apply(status, event)).toBe(status);
    else {
      const after = apply(status, event);
      expect(after.state).toBe(expected);
      expect(after.reason === null).toBe(expected !== 'error' && expected !== 'backoff');
      expect(after.retryAt === null).toBe(expected !== 'backoff');
      if (isInactive(expected)) expect(after.endedAt).toBe(NOW);
    }
    // The argument is not modified.
    expect(status).toEqual(at(state, { numExits: 1, startedAt: 5, readyAt: 6 }));
  });
});

describe('the status of a version', () => {
  test('goes from queued to running to stopped', () => {
    let status = signal(NEW_VERSION, 'granted', NOW);
    status = signal(status, 'started', NOW + 1);
    status = signal(status, 'ready', NOW + 2);
    status = signal(status, 'replicaLost', NOW + 3);
    status = signal(status, 'ready', NOW + 4);
    expect(status).toMatchObject({ state: 'running', startedAt: NOW + 1, readyAt: NOW + 2 });
    status = signal(command(status, 'stop', NOW + 5), 'ended', NOW + 6);
    expect(status).toMatchObject({ state: 'stopped', endedAt: NOW + 6 });
    expect(command(status, 'start', NOW + 7)).toEqual(NEW_VERSION);
  });

  test('backs off exponentially after crashes, then fails with the reason', () => {
    let status = at('starting');
    const waits: number[] = [];
    for (let i = 1; i < DEFAULT_CRASH_POLICY.maxExits; i++) {
      status = exited(status, { exitCode: 3 }, NOW);
      expect(status).toMatchObject({ state: 'backoff', numExits: i, exitCode: 3 });
      waits.push((status.retryAt ?? 0) - NOW);
      status = signal(status, 'retry', NOW);
      expect(status).toMatchObject({ state: 'starting', retryAt: null, startedAt: NOW, readyAt: null });
    }
    expect(waits).toEqual([10_000, 20_000, 40_000, 80_000]);
    expect(exited(status, { exitCode: 3 }, NOW)).toMatchObject({
      state: 'error',
      reason: 'crash_loop',
      message: 'exited 5 times, last with exit code 3',
      exitCode: 3,
      retryAt: null,
      endedAt: NOW,
    });
    expect(exited(status, { exitCode: null }, NOW).message).toContain('last by a signal');
    expect(exited(status, { exitCode: 137, cause: 'out_of_memory' }, NOW)).toMatchObject({ reason: 'out_of_memory' });
    expect(exited(status, { exitCode: 1, cause: 'gpu_out_of_memory' }, NOW)).toMatchObject({
      reason: 'gpu_out_of_memory',
    });
  });

  test('limits the backoff to five minutes', () => {
    expect([1, 2, 5, 6, 7, 60].map((exits) => retryDelayMs(exits))).toEqual([
      10_000, 20_000, 160_000, 300_000, 300_000, 300_000,
    ]);
  });

  test('resets the number of crashes after ten healthy minutes and not before', () => {
    const healthy = at('running', { numExits: 4, readyAt: NOW });
    expect(exited(healthy, { exitCode: 1 }, NOW + 10 * MINUTE)).toMatchObject({ state: 'backoff', numExits: 1 });
    expect(exited(healthy, { exitCode: 1 }, NOW + 10 * MINUTE - 1000)).toMatchObject({
      state: 'error',
      reason: 'crash_loop',
    });
  });

  test('does not count a slow start as a crash', () => {
    const status = fail(
      at('starting', { numExits: 1 }),
      'startExpired',
      { reason: 'wrong_port', message: 'it listens on port 8080 and not on 80' },
      NOW,
    );
    expect(status).toMatchObject({
      state: 'error',
      reason: 'wrong_port',
      message: 'it listens on port 8080 and not on 80',
      numExits: 1,
    });
  });

  test('ignores late signals while stopping', () => {
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

  test('every combination has a state and a URL behaviour', () => {
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
            // A serving deployment refuses requests only when a user stops or deletes it.
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

  test('scaled to zero holds a request', () => expect(urlBehaviour('scaled_to_zero', false)).toEqual({ type: 'hold' }));
});

describe('a training container', () => {
  test('can reach and leave every state', () => {
    expect(CONTAINER_STATES.filter((state) => Object.keys(CONTAINER_TRANSITIONS[state]).length === 0)).toEqual([]);
    const reached = new Set(CONTAINER_STATES.flatMap((state) => Object.values(CONTAINER_TRANSITIONS[state])));
    expect([...reached].sort()).toEqual([...CONTAINER_STATES].sort());
    for (const state of CONTAINER_STATES)
      for (const event of Object.keys(CONTAINER_TRANSITIONS[state])) expect(CONTAINER_EVENTS).toContain(event);
    // Stopping ends in stopped, whether the process fails or not.
    expect(CONTAINER_TRANSITIONS.stopping).toEqual({ ended: 'stopped', failed: 'stopped' });
  });
});
