/** The texts of the service on Chinese pages. They come from the code that writes them. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { NewOrganization } from '../../../../server/platform/api/objects';
import { checkValue } from '../../../../server/platform/api/validate';
import { translateServiceText } from '../../../../server/platform/console/i18n/zh-cn-service';
import { CanaryMeter } from '../../../../server/platform/canary/canary-rule';
import { type Exit, exited, NEW_VERSION } from '../../../../server/platform/control/version-status';
import { LIMITED, WATCHED } from '../../../../server/platform/driver/process/process-driver';
import { FREE_PORT, NAMESPACES, OWN_ADDRESS } from '../../../../server/platform/driver/process/probe';
import { lastingFailure } from '../../../../server/platform/driver/process/health';
import { checkListeners } from '../../../../server/platform/driver/process/listeners';
import { explainExit, networkHint } from '../../../../server/platform/driver/process/exit-text';
import type { ReplicaExit } from '../../../../server/platform/driver/process/replica-folder';

const EXIT: ReplicaExit = {
  exitCode: null,
  signal: null,
  wasStopped: false,
  wasKilled: false,
  memory: undefined,
  disk: undefined,
};

/** What is left of English: names of variables, addresses, flags and abbreviations do not count. */
function englishIn(text: string): string[] {
  return (text.match(/(?<![\w/.:@-])[a-z]{2,}(?![\w/:@-])/g) ?? []).filter((word) => !['home', 'token'].includes(word));
}

function exitText(exit: Partial<ReplicaExit> | undefined, lines: string[] = []): string {
  return explainExit('rep_1', 'L2', exit && { ...EXIT, ...exit }, lines).message;
}

/** The message of a version whose replica has ended this many times. */
function exits(times: number, exit: Exit): string {
  return exited({ ...NEW_VERSION, state: 'running', numExits: times - 1 }, exit, 0).message ?? '';
}

test.each([
  exitText(undefined),
  exitText({ wasStopped: true }),
  exitText({ wasStopped: true, wasKilled: true }),
  exitText({ exitCode: 0 }),
  exitText({ exitCode: 1 }),
  exitText({ signal: 'SIGSEGV' }),
  exitText({ signal: 'SIGKILL' }),
  exitText({ signal: 'SIGKILL', memory: 'enough' }),
  exitText({ signal: 'SIGKILL', memory: 'cgroup' }),
  exitText({ signal: 'SIGKILL', memory: 'watch' }),
  ...(['bytes', 'entries', 'cache', 'hidden'] as const).map((disk) => exitText({ signal: 'SIGKILL', disk })),
  exitText({ exitCode: 1 }, ['CUDA out of memory']),
  exitText({ exitCode: 1 }, ['std::bad_alloc']),
  exitText({ exitCode: 1 }, ['ENOSPC: no space left on device']),
  exitText({ exitCode: 1 }, ['getaddrinfo EAI_AGAIN example.com']),
  networkHint('Network is unreachable', 'L2') ?? '',
  ...(['L0', 'L1', 'L2'] as const).flatMap((level) =>
    [
      [],
      [{ address: '127.0.0.1', port: 80, inode: '1' }],
      [
        { address: '0.0.0.0', port: 3000, inode: '1' },
        { address: '0.0.0.0', port: 3001, inode: '2' },
      ],
    ].map((listeners) => checkListeners(listeners, level, '127.0.0.9', 80)?.message ?? ''),
  ),
  lastingFailure({ status: 404, message: '/health returned 404' })?.message ?? '',
  canaryErrors(),
  exits(1, { exitCode: 3, message: 'Ended with exit code 3' }),
  exits(4, { exitCode: 3, message: 'Ended with exit code 3' }),
  exits(1, { exitCode: 3 }),
  exits(4, { exitCode: 3 }),
  exits(1, { exitCode: null }),
  exits(4, { exitCode: null }),
  `${NAMESPACES} ${LIMITED}`,
  `${OWN_ADDRESS} Namespaces: level L1 was requested. ${WATCHED}`,
  `${FREE_PORT} Namespaces: level L0 was requested. Port 80: level L0 was requested. ${WATCHED}`,
  'The health check fails: /health returned 404',
  'waited 600 s: an earlier operation did not end',
  'waited 600 s: needs 2 free GPUs, 1 available',
  'was not ready within 600 s',
  'no process was started within 600 s',
  'failed its health checks for 60 s',
  'needs 1 free GPU of type NVIDIA H100, 0 available',
  'needs 2 free GPUs, 1 available',
  'needs 4096 MiB of memory, 512 MiB available',
  "needs 2 GPUs, 1 GPU left of the owner's quota of 4 GPUs",
  "needs 4096 MiB of memory, 512 MiB of memory left of the owner's quota of 8192 MiB of memory",
  'input0: the data no longer exists',
  'it ended while the service was not running',
])('%s', (text) => {
  const shown = translateServiceText(text);
  expect(shown).toMatch(/\p{Script=Han}/u);
  // The name of a GPU, a flag or an address stays.
  expect(englishIn(shown)).toEqual([]);
});

/** The texts of the refusals that have one wording each, from the source. */
function refusals(): string[] {
  const folder = join(__dirname, '../../../../server/platform');
  const sources = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts') && !/^(?:cli|console)\//.test(name))
    .map((name) => readFileSync(join(folder, name), 'utf8'));
  const [codes, text] = [
    'conflict|busy|wrong_state|gone|forbidden|quota_exceeded|not_found|bad_credentials',
    /'([^']+)'/,
  ];
  const pattern = new RegExp(`ServiceError\\(\\s*'(?:${codes})',\\s*${text.source}`, 'g');
  return sources.flatMap((source) => [...source.matchAll(pattern)].map(([, found]) => found));
}

test('the source has refusals', () => expect(refusals().length).toBeGreaterThan(60));

test('names that users chose stay', () => {
  expect(translateServiceText('name: another deployment of the owner has the name key')).toMatch(/ key$/);
  expect(translateServiceText('the organization has deployments, such as path: delete them first')).toContain(
    ' path：',
  );
  expect(translateServiceText('owner: organization session not found')).toContain(' session ');
});

test.each([
  ...new Set(refusals()),
  'email: an account with this address already exists',
  'name: another deployment of the owner has the name chat',
  'slug: expected 1 to 63 lowercase letters, digits and hyphens, without a hyphen at either end',
  'email: expected an address such as you@example.com',
  'password: expected 10 to 256 characters',
  'password: expected something other than the email address',
  'otp: expected the current six-digit code of your authenticator',
  'path: expected an existing folder below /data or /models',
  'compute.gpu_count: got 2 for each of 3 replicas; this machine has 1',
  'compute.cpu_millis: got 64000; this machine has 2000',
  'needs 3 deployments, but the quota of the owner is 2 deployments. An administrator can change it',
  'needs 4 GPUs, but the quota of the owner is 1 GPU. An administrator can change it',
  'needs 9000 MiB of memory, but the quota of the owner is 100 MiB of memory. An administrator can change it',
  'this requires the role developer or higher; your role is viewer',
  'a member with the role admin cannot grant or revoke the role owner',
  'version 3 is already active',
  'version 3 is running: wait until it has stopped',
  'the container is running: stop it first',
  'the organization has deployments, such as chat: delete them first',
  'owner: organization org_01 not found',
  'this key does not exist',
])('refused: %s', (text) => {
  const shown = translateServiceText(text);
  expect(shown).toMatch(/\p{Script=Han}/u);
  expect(englishIn(shown).filter((word) => !['chat', 'name', 'capstan', 'accounts', 'delete'].includes(word))).toEqual(
    [],
  );
});

test.each([
  [{ slug: 'lab' }, '/name：缺少此项，应为 1 至 100 个字符的字符串'],
  [{ slug: 'lab', name: '' }, '/name：应为 1 至 100 个字符的字符串，实际为 0 个字符的字符串'],
  [
    { slug: 'My lab', name: 'Lab' },
    '/slug：应为 1 至 63 个小写字母、数字和连字符，首尾不能是连字符，实际为 6 个字符的字符串',
  ],
  [{ slug: 'lab', name: 'Lab', color: 1 }, '/color：未知字段'],
])('an invalid value: %j', async (value, shown) => {
  const error = await checkValue(NewOrganization, value).catch((problem: Error) => problem);
  expect(translateServiceText((error as Error).message)).toBe(shown);
});

test('a refused flag and a text of a program stay as they are', () => {
  expect(translateServiceText(exitText({ exitCode: 2 }, ['error: --max-model-len: expected a number, got 1G']))).toBe(
    '以退出码 2 结束：--max-model-len: expected a number, got 1G',
  );
  for (const text of ['', 'toString', 'Ended with exit code 1 and more', 'the script says Stopped'])
    expect(translateServiceText(text)).toBe(text);
});

function canaryErrors(): string {
  const meter = new CanaryMeter();
  for (let i = 0; i < 100; i++) meter.record('canary', { isError: true });
  return meter.verdict ?? '';
}
