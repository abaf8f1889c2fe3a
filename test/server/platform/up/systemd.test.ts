/** The systemd unit of the deployment service. */
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { UP_FLAG_NAMES } from '../../../../server/platform/cli/up-flags';

const unit = readFileSync(join(__dirname, '../../../../packaging/capstan.service'), 'utf8');
const canVerify = spawnSync('systemd-analyze', ['--version']).status === 0;
/** Known since systemd 254. */
const NEW_KEYS = /Unknown key(?: name)? 'DelegateSubgroup'/;

(canVerify ? test : test.skip)('systemd-analyze accepts the unit', () => {
  const folder = mkdtempSync(join(tmpdir(), 'capstan-systemd-'));
  try {
    const file = join(folder, 'capstan.service');
    const user = execFileSync('id', ['-un'], { encoding: 'utf8' }).trim();
    writeFileSync(
      file,
      unit.replace(/^(ExecStart=)\S+/m, `$1${process.execPath}`).replace(/^User=.*$/m, `User=${user}`),
    );
    const { stderr } = spawnSync('systemd-analyze', ['verify', '--man=no', file], { encoding: 'utf8' });
    expect(stderr.split('\n').filter((line) => line.includes('capstan.service') && !NEW_KEYS.test(line))).toEqual([]);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test('the unit stops only the service process, and uses existing flags', () => {
  expect(unit).toMatch(/^KillMode=process$/m);
  const flags = [...unit.matchAll(/ --([a-z-]+)/g)].map(([, name]) => name);
  expect(flags).toContain('data-dir');
  for (const name of flags) expect([...UP_FLAG_NAMES.keys()]).toContain(`--${name}`);
});

/** What systemd does unless a unit says otherwise. */
const START_LIMIT = { starts: 5, withinS: 10 };

test('systemd never gives up on a service whose database or disk is away', () => {
  const restartS = Number(/^RestartSec=(\d+)$/m.exec(unit)?.[1] ?? 0.1);
  expect(restartS * (START_LIMIT.starts - 1)).toBeGreaterThan(START_LIMIT.withinS);
});
