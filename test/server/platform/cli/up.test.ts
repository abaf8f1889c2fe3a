import { Command } from 'commander';
import { UsageError } from '../../../../server/base/usage-error';
import { addUpCommand } from '../../../../server/platform/cli/up';
import { up } from '../../../../server/platform/up/service';

jest.mock('../../../../server/platform/up/service');

test('up ends with a usage error on other systems than Linux', async () => {
  const { platform } = process;
  const setPlatform = (value: string) => Object.defineProperty(process, 'platform', { value });
  const program = new Command().exitOverride();
  addUpCommand(program, () => {});
  setPlatform('darwin');
  const started = program.parseAsync(['up'], { from: 'user' });
  setPlatform(platform);
  await expect(started).rejects.toBeInstanceOf(UsageError);
  await expect(started).rejects.toThrow('expected Linux, got darwin');
});

test.each([
  ['a full disk', 'database or disk is full', 'the disk of /data is full: free space there, then start the service'],
  ['another error', 'EIO: i/o error, write', 'EIO: i/o error, write'],
])('up explains %s', async (_name, message, expected) => {
  jest.mocked(up).mockRejectedValueOnce(new Error(message));
  const program = new Command().exitOverride();
  addUpCommand(program, () => {});
  const started = program.parseAsync(['up', '--data-dir', '/data'], { from: 'user' });
  await expect(started).rejects.toThrow(expected);
});
