/** Hostile start scripts at level L2 that use up memory, processes and the disk, beside a neighbour that serves. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { ReplicaSpec } from '../../../../../server/platform/driver/driver';
import { newSpec, node } from '../conformance';
import { describeUsers, makeDataDir, newNeighbour, type Result, runScripts, type User } from './users';

const MB = 2 ** 20;
/** Writes without an end, until the process is killed or a write fails. */
const flood = (file: string): string => `dd if=/dev/zero of=${file} bs=1M 2>&1 | grep -c "No space left"`;

describeUsers('a start script of $name', (user: User) => {
  let dataDir: string;
  let remove: () => void;
  beforeAll(() => {
    ({ dataDir, remove } = makeDataDir(user));
  });
  afterAll(() => remove());

  async function run(script: string, more: Partial<ReplicaSpec> = {}): Promise<Result & { id: string }> {
    const spec = newSpec({ startCommand: script, memoryMb: 128, ...more });
    const [result] = await runScripts(user, {
      dataDir,
      hiddenPaths: [],
      replicaDiskBytes: 16 * MB,
      neighbour: newNeighbour(),
      specs: [spec],
    });
    return { ...result, id: spec.id };
  }

  test('fills its files in memory together up to half of its memory', async () => {
    const { lines } = await run(
      `${flood('/dev/shm/x')}; for file in /tmp/x /var/tmp/x /run/x; do echo x > $file || echo full; done; du -sm /dev/shm | cut -f1`,
    );
    expect(lines.filter((line) => !/No space left|I\/O error/.test(line))).toEqual(['1', 'full', 'full', 'full', '64']);
  });

  test('cannot fill the memory with empty files', async () => {
    const { lines } = await run(
      node(
        'let n = 0; try { for (;;) require("fs").writeFileSync("/tmp/" + n++, "") } catch (error) { console.log(error.code, n <= 65536) }',
      ),
      { memoryMb: 512 },
    );
    expect(lines).toEqual(['ENOSPC true']);
  });

  test('starts a bounded number of processes', async () => {
    const { lines } = await run(
      `python3 -u - <<'END'
import os
n = 0
try:
    while True:
        os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ)
        n += 1
except OSError as error:
    print(error.errno, 100 < n < 4096)
END`,
      { memoryMb: 4_096 },
    );
    expect(lines).toEqual(['11 True']);
  });

  test.each([
    ['a file', flood('file')],
    ['a deleted file that stays open', 'exec 3> file; rm file; dd if=/dev/zero bs=1M >&3'],
    [
      'folders inside folders',
      node(
        'for (let n = 0; n < 3000; n++) { require("fs").mkdirSync("d"); process.chdir("d") } setInterval(() => {}, 1000)',
      ),
    ],
    ['empty files', node('for (let n = 0; ; n++) require("fs").writeFileSync("f" + n, "")')],
    ['a folder that is closed', 'mkdir d; cd d; exec 3> file; chmod 000 .; dd if=/dev/zero bs=1M >&3'],
    ['a folder that only lists names', 'mkdir d; cd d; exec 3> file; chmod 400 .; dd if=/dev/zero bs=1M >&3'],
    ['a home that is closed', 'exec 3> file; chmod 000 .; dd if=/dev/zero bs=1M >&3'],
  ])('is stopped when it fills its disk with %s, and its home is removed', async (_what, script) => {
    const { cause, signal, id } = await run(script, { memoryMb: 512 });
    expect({ cause, signal }).toEqual({ cause: 'disk_quota_exceeded', signal: 'SIGKILL' });
    expect(existsSync(join(dataDir, 'replicas', id, 'home'))).toBe(false);
  });
});
