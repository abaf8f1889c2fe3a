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
