/** `--wait` of the commands that stop a deployment, against a service that returns fixed states. */
import { runCommand } from './support';

interface Step {
  state: string;
  numReplicas: number;
}

/** A service with one deployment. It enters the next step after each list of versions. */
function fakeService(steps: readonly Step[]): { fetch: typeof fetch; calls: string[] } {
  const calls: string[] = [];
  let numPolls = 0;
  const respond = (url: string, { method }: { method: string }): Response => {
    const path = new URL(url).pathname.replace('/api/v1/deployments/dep_1', '');
    const { state, numReplicas } = steps[Math.min(numPolls, steps.length - 1)];
    calls.push(`${method} ${path}`.trim());
    if (path !== '/versions') return Response.json({ id: 'dep_1', name: 'chat', state });
    numPolls++;
    return Response.json({ data: [{ number: 1, replicas: Array.from({ length: numReplicas }) }], next: null });
  };
  return { fetch: ((url: string, init: { method: string }) => Promise.resolve(respond(url, init))) as never, calls };
}

function run(line: string[], fetchFunction: typeof fetch) {
  return runCommand(['deployments', ...line], { CAPSTAN_TOKEN: 'mt-x' }, { fetch: fetchFunction });
}

test.each([
  ['stop', ['stopping', 'paused']],
  ['scale-to-zero', ['scaled_to_zero', 'scaled_to_zero']],
] as const)('%s --wait returns when no replica is left', async (command, [first, last]) => {
  const { fetch, calls } = fakeService([
    { state: first, numReplicas: 2 },
    { state: last, numReplicas: 1 },
    { state: last, numReplicas: 0 },
  ]);
  const { code, out, err } = await run([command, 'dep_1', '--wait'], fetch);
  expect([code, out]).toEqual([0, `chat (dep_1) is ${last}\n`]);
  expect(err).toMatch(
    new RegExp(`^.* s {2}${first}: 2 replicas left\\n.* s {2}${last}: 1 replica left\\n.* s {2}${last}\\n$`),
  );
  expect(calls.filter((call) => call.startsWith('POST'))).toEqual([`POST /${command}`]);
  expect(calls.filter((call) => call.endsWith('/versions'))).toHaveLength(3);
});

test('a service that restarts meanwhile is asked again', async () => {
  const { fetch } = fakeService([
    { state: 'stopping', numReplicas: 1 },
    { state: 'paused', numReplicas: 0 },
  ]);
  let numCalls = 0;
  const restarting = ((...args: Parameters<typeof globalThis.fetch>) =>
    [4, 5].includes(++numCalls)
      ? Promise.reject(new TypeError('fetch failed', { cause: Object.assign(new Error(), { code: 'ECONNREFUSED' }) }))
      : fetch(...args)) as typeof globalThis.fetch;
  const { code, out, err } = await run(['stop', 'dep_1', '--wait'], restarting);
  expect([code, out]).toEqual([0, 'chat (dep_1) is paused\n']);
  expect(err.match(/the service cannot be reached, trying again for 30 s/g)).toHaveLength(1);
});

test('without --wait the command returns at once', async () => {
  const { fetch, calls } = fakeService([{ state: 'stopping', numReplicas: 1 }]);
  expect(await run(['stop', 'dep_1'], fetch)).toEqual({
    code: 0,
    out: 'chat (dep_1) stops. State: stopping\n',
    err: '',
  });
  expect(calls).toEqual(['GET', 'POST /stop']);
});

test('the wait fails if the deployment starts again', async () => {
  const { fetch } = fakeService([
    { state: 'scaled_to_zero', numReplicas: 1 },
    { state: 'running', numReplicas: 1 },
  ]);
  expect(await run(['scale-to-zero', 'dep_1', '--wait'], fetch)).toMatchObject({
    code: 1,
    out: '',
    err: expect.stringMatching(/expected chat to stop, but it is running$/),
  });
});

test('the wait fails after the timeout, and says that the stop continues', async () => {
  const { fetch } = fakeService([{ state: 'stopping', numReplicas: 1 }]);
  expect(await run(['stop', 'dep_1', '--wait', '--timeout', '0'], fetch)).toMatchObject({
    code: 1,
    out: '',
    err: expect.stringMatching(/chat still has 1 replica after 0 s\. The stop continues$/),
  });
});
