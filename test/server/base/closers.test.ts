import { closeAll, type Closers, runAndClose } from '../../../server/base/closers';

describe('closers', () => {
  let calls: string[];
  const closer = (name: string) => () => void calls.push(name);
  const failing = (name: string) => () => {
    calls.push(name);
    return Promise.reject(new Error(`${name} failed`));
  };
  const failingAtOnce = (name: string) => () => {
    calls.push(name);
    throw new Error(`${name} failed`);
  };

  beforeEach(() => {
    calls = [];
  });

  test('run once, the newest first, each also after one that failed', async () => {
    const closers: Closers = [closer('first'), failingAtOnce('second'), closer('third')];
    await expect(closeAll(closers)).rejects.toThrow(new Error('second failed'));
    expect(calls).toEqual(['third', 'second', 'first']);
    await closeAll(closers);
    expect(calls).toHaveLength(3);
  });

  test('all failures are in the error', async () => {
    await expect(closeAll([failing('first'), failingAtOnce('second')])).rejects.toMatchObject({
      message: 'second failed; first failed',
      errors: [{ message: 'second failed' }, { message: 'first failed' }],
    });
  });

  describe('after a program', () => {
    const run = async (code: number | Error, ...closers: Closers) => {
      const errors: string[] = [];
      const result = await runAndClose(
        (added) => {
          added.push(...closers);
          return code instanceof Error ? Promise.reject(code) : Promise.resolve(code);
        },
        ({ message }) => void errors.push(message),
      ).catch((error: Error) => error.message);
      return { result, errors };
    };

    test('keep its exit code', async () => {
      expect(await run(3, closer('first'))).toEqual({ result: 3, errors: [] });
    });

    test('are all reported, and make the exit code 1', async () => {
      expect(await run(0, failing('first'), closer('second'), failing('third'))).toEqual({
        result: 1,
        errors: ['third failed', 'first failed'],
      });
      expect(calls).toEqual(['third', 'second', 'first']);
    });

    test('run after its error, and do not replace it', async () => {
      expect(await run(new Error('no port'), failing('first'))).toEqual({
        result: 'no port',
        errors: ['first failed'],
      });
    });
  });
});
