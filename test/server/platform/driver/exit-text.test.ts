/** Explanations of exits, and how certain they are. */
import { explainExit, networkHint } from '../../../../server/platform/driver/process/exit-text';
import type { ReplicaExit } from '../../../../server/platform/driver/process/replica-folder';

const explain = (exit: Partial<ReplicaExit> | undefined, lines: readonly string[] = [], level: 'L2' | 'L0' = 'L2') =>
  explainExit(
    'rep_1',
    level,
    exit === undefined
      ? undefined
      : {
          exitCode: null,
          signal: null,
          wasStopped: false,
          wasKilled: false,
          memory: undefined,
          disk: undefined,
          ...exit,
        },
    lines,
  );

test('a replica that the supervisor killed because of its disk says so', () => {
  expect(explain({ signal: 'SIGKILL', wasKilled: true, disk: 'bytes' })).toMatchObject({
    cause: 'disk_quota_exceeded',
    message: expect.stringContaining('added more to its home than one replica may'),
  });
});

describe('a SIGKILL that the service did not send', () => {
  test('is lack of memory if the kernel or the supervisor measured it', () => {
    for (const memory of ['cgroup', 'watch'] as const)
      expect(explain({ signal: 'SIGKILL', memory })).toMatchObject({
        cause: 'out_of_memory',
        message: expect.stringContaining('exceeded its memory limit'),
      });
  });

  test('is not lack of memory if the kernel counted none', () => {
    const { cause, message } = explain({ signal: 'SIGKILL', memory: 'enough' });
    expect([cause, message]).toEqual([undefined, expect.stringMatching(/signal 9 \(SIGKILL\).*no lack of memory/)]);
  });

  test('has no certain cause if memory was not counted', () => {
    const { cause, message } = explain({ signal: 'SIGKILL' });
    expect([cause, message]).toEqual([
      undefined,
      expect.stringMatching(/signal 9 \(SIGKILL\).*when the machine ran out of memory/),
    ]);
  });
});

test('a stop or a clean exit is never lack of memory, even if a child process was killed', () => {
  expect(explain({ signal: 'SIGKILL', memory: 'cgroup', wasStopped: true, wasKilled: true })).toMatchObject({
    wasStopped: true,
    message: expect.stringContaining('Stopped'),
  });
  expect(explain({ signal: 'SIGKILL', memory: 'cgroup', wasStopped: true }).cause).toBeUndefined();
  expect(explain({ exitCode: 0, memory: 'cgroup' })).toMatchObject({
    exitCode: 0,
    message: 'Ended with exit code 0',
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
])('the log suggests the cause: %s', (line, cause) => {
  expect(explain({ exitCode: 1 }, ['loading', line])).toMatchObject({ cause });
  expect(explain({ exitCode: 0 }, ['loading', line]).cause).toBeUndefined();
});

test.each([
  'curl: (6) Could not resolve host: example.com',
  'Error: getaddrinfo EAI_AGAIN registry.npmjs.org',
  'connect ENETUNREACH 1.1.1.1:443 - Local (0.0.0.0:0)',
  'socket.gaierror: [Errno -3] Temporary failure in name resolution',
])('explains a network error inside namespaces: %s', (line) => {
  expect(networkHint(line, 'L2')).toMatch(/cannot reach other machines/);
  expect(networkHint(line, 'L0')).toBeUndefined();
  expect(explain({ exitCode: 6 }, [line]).message).toMatch(/exit code 6.*cannot reach other machines/);
  expect(explain({ exitCode: 6 }, [line], 'L0').message).toBe('Ended with exit code 6');
});

test('gives no hint for other lines', () => {
  for (const line of ['listening on 0.0.0.0:80', 'connect ECONNREFUSED 127.0.0.1:5432'])
    expect(networkHint(line, 'L2')).toBeUndefined();
});

test('a flag that the runtime refuses is part of the explanation', () => {
  const line = "error: --max-model-len: expected at most the model's context length 2048, got 8192";
  expect(explain({ exitCode: 2 }, ['loading', line])).toMatchObject({
    message: `Ended with exit code 2: ${line.slice(7)}`,
    refusedFlag: true,
  });
  const other = explain({ exitCode: 1 }, [line]);
  expect([other.message, other.refusedFlag]).toEqual(['Ended with exit code 1', undefined]);
});
