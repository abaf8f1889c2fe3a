import { Command } from 'commander';
import { UsageError } from '../../../../server/base/usage-error';
import { addUpCommand } from '../../../../server/platform/cli/up';

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
