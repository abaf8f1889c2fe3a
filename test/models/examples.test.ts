/** The programs in examples/ run with small random models. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { prepare } from '../fakes/server-process';
import { randomEmbedder, randomReranker } from '../fakes/random-models';
import { temporaryFolder } from '../fakes/temporary-folder';

const root = join(__dirname, '../..');

function run(example: string, ...args: string[]): string {
  return execFileSync(process.execPath, [join(root, 'examples', example), ...args], { encoding: 'utf8', cwd: root });
}

beforeAll(() => void prepare());

test('worker.mjs answers in a thread', () => {
  expect(run('worker.mjs')).toMatch(/^Capstan is .*\n1, 2, 3, 4, 5\n$/);
});

test('batch.mjs answers the lines of a file in order', () => {
  const file = join(temporaryFolder('batch'), 'questions.txt');
  const questions = Array.from({ length: 40 }, (_, i) => (i % 2 === 0 ? 'What is Capstan?' : 'Count from 1 to 5.'));
  writeFileSync(file, questions.join('\n\n'));
  const answers = run('batch.mjs', file)
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(answers.map(({ question }) => question)).toEqual(questions);
  expect(answers[39].text).toBe('1, 2, 3, 4, 5');
});

test('agent.mjs calls a function and answers', () => {
  expect(run('agent.mjs')).toMatch(/get_weather\(\{"city":"Paris"\}\) = \{"temperature":21\}\n[^]*21/);
});

test('extract.mjs returns an object', () => {
  expect(run('extract.mjs')).toMatch(/\{ name: 'Anna', age: 31 \} \d+ tokens/);
});

describe('rag.mjs', () => {
  const QUESTION = 'What is Capstan?';
  const pages = temporaryFolder('pages');

  beforeAll(() => {
    mkdirSync(join(pages, 'more'));
    writeFileSync(join(pages, 'fruit.md'), '# Fruit\n\nA plum is a fruit.\n\nA pear is too.\n');
    writeFileSync(join(pages, 'more/about.md'), `# ${QUESTION}\n\n${QUESTION}\n`);
  });

  test('finds the chunk that is most like the question, and answers', () => {
    const lines = run('rag.mjs', '--embedder', randomEmbedder(), '--pages', pages, QUESTION).trim().split('\n');
    expect(lines[0]).toMatch(/^0\.\d{4} {2}\S+more\/about\.md: What is Capstan\?$/);
    expect(lines[1]).toMatch(/^-?0\.\d{4} {2}\S+fruit\.md: Fruit$/);
    expect(lines.slice(2).join('\n')).toMatch(/\w/);
  });

  test('sorts with a reranker', () => {
    const models = ['--embedder', randomEmbedder(), '--reranker', randomReranker()];
    const lines = run('rag.mjs', ...models, '--pages', pages, QUESTION)
      .trim()
      .split('\n');
    const scores = lines.slice(0, 2).map((line) => Number(line.split(' ')[0]));
    expect(scores.every((score) => score > 0 && score < 1)).toBe(true);
    expect(scores[0]).toBeGreaterThanOrEqual(scores[1]);
  });
});
