/** Sends the requests recorded with vLLM 0.32 to the demo model. Every difference must be decided. */
import { killAll, prepare, type Running, startServer } from '../fakes/server-process';
import { differences, shapeOf } from './wire-shape';
import { compareAll, RECORDED, SERVE_ARGS } from './wire';
import { verdictOf } from './wire-verdicts';

afterAll(killAll);

test.each(['uws', 'node'])('%s: every difference to vLLM is decided', async (transport) => {
  prepare();
  const server: Running & { url: string } = await startServer([...SERVE_ARGS, '--http-transport', transport], {});
  const found = await compareAll(server.url);
  expect(RECORDED).toHaveLength(124);
  expect(found.filter((one) => verdictOf(one) === undefined)).toEqual([]);
  // A known difference, to prove that the comparison works.
  expect(found).toContainEqual({
    name: 'plain',
    path: 'choices[].message.reasoning_content',
    theirs: 'absent',
    ours: 'null',
  });
});

test('shapes differ exactly where keys or kinds differ', () => {
  const compare = (theirs: unknown, ours: unknown) =>
    differences(shapeOf(theirs), shapeOf(ours)).map(({ path, theirs: a, ours: b }) => `${path}: ${a} -> ${b}`);
  expect(compare({ a: 1, b: [{ c: 'x' }] }, { a: 2, b: [{ c: 'y' }, { c: 'z' }] })).toEqual([]);
  expect(compare({ a: 1, b: { c: 1 } }, { a: null })).toEqual(['a: number -> null', 'b: object -> absent']);
  expect(compare([{ a: 1 }, { a: null }], [{ a: 1 }])).toEqual(['[].a: null or number -> number']);
  expect(compare({ prompt_logprobs: [{ 5: { logprob: 1 } }] }, { prompt_logprobs: [{ 7: { logprob: 2 } }] })).toEqual(
    [],
  );
});
