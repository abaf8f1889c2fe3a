/** What is said of an end, and how sure that is. */
import { explainExit, networkHint } from '../../../server/driver/process/exit-text';
import type { ReplicaExit } from '../../../server/driver/process/replica-folder';

const explain = (exit: Partial<ReplicaExit> | undefined, lines: readonly string[] = [], level: 'L2' | 'L0' = 'L2') =>
  explainExit(
    'rep_1',
    level,
    exit === undefined
      ? undefined
      : { exitCode: null, signal: null, wasStopped: false, wasKilled: false, memory: undefined, ...exit },
    lines,
  );

describe('a SIGKILL that nobody here sent', () => {
  test('is lack of memory where the kernel counted one, or it was measured', () => {
    for (const memory of ['cgroup', 'watch'] as const)
      expect(explain({ signal: 'SIGKILL', memory })).toMatchObject({
        cause: 'out_of_memory',
        message: expect.stringContaining('used more memory than it was given'),
      });
  });

  test('is none where the kernel counts, and counted none', () => {
    const { cause, message } = explain({ signal: 'SIGKILL', memory: 'enough' });
    expect([cause, message]).toEqual([
      undefined,
      expect.stringMatching(/signal 9 \(SIGKILL\).*not for lack of memory/),
    ]);
  });

  test('is told as it is where nobody counts, with what it may be', () => {
    const { cause, message } = explain({ signal: 'SIGKILL' });
    expect([cause, message]).toEqual([
      undefined,
      expect.stringMatching(/signal 9 \(SIGKILL\).*when the machine has no more memory/),
    ]);
  });
});

test('who stopped it, or ended in order, did not lack memory, whatever became of a process of its own', () => {
  expect(explain({ signal: 'SIGKILL', memory: 'cgroup', wasStopped: true, wasKilled: true })).toMatchObject({
    wasStopped: true,
    message: expect.stringContaining('stopped'),
  });
  expect(explain({ signal: 'SIGKILL', memory: 'cgroup', wasStopped: true }).cause).toBeUndefined();
  expect(explain({ exitCode: 0, memory: 'cgroup' })).toMatchObject({
    exitCode: 0,
    message: 'It ended with exit code 0',
  });
  expect(explain({ exitCode: 1, memory: 'cgroup' }).cause).toBe('out_of_memory');
  expect(explain(undefined)).toMatchObject({
    signal: 'SIGKILL',
    message: expect.stringContaining('supervisor was killed'),
  });
});

test.each([
  ['torch.OutOfMemoryError: CUDA out of memory.', 'gpu_out_of_memory'],
  ['FATAL ERROR: JavaScript heap out of memory', 'out_of_memory'],
  ['Error: ENOSPC: no space left on device, write', 'disk_full'],
  ["cp: error writing '/platform/home/x': No space left on device", 'disk_full'],
])('its log speaks of it: %s', (line, cause) => {
  expect(explain({ exitCode: 1 }, ['loading', line])).toMatchObject({ cause });
  expect(explain({ exitCode: 0 }, ['loading', line]).cause).toBeUndefined();
});

test.each([
  'curl: (6) Could not resolve host: example.com',
  'Error: getaddrinfo EAI_AGAIN registry.npmjs.org',
  'connect ENETUNREACH 1.1.1.1:443 - Local (0.0.0.0:0)',
  'socket.gaierror: [Errno -3] Temporary failure in name resolution',
])('who tries to reach out of namespaces learns that there is no way: %s', (line) => {
  expect(networkHint(line, 'L2')).toMatch(/has a way out to the network/);
  expect(networkHint(line, 'L0')).toBeUndefined();
  expect(explain({ exitCode: 6 }, [line]).message).toMatch(/exit code 6.*has a way out to the network/);
  expect(explain({ exitCode: 6 }, [line], 'L0').message).toBe('It ended with exit code 6');
});

test('a line that speaks of no network gets no hint', () => {
  for (const line of ['listening on 0.0.0.0:80', 'connect ECONNREFUSED 127.0.0.1:5432'])
    expect(networkHint(line, 'L2')).toBeUndefined();
});
