import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { root } from './blocks';

const readme = readFileSync(join(root, 'README.md'), 'utf8');

test('the README is short, and begins with the two commands for a fresh machine', () => {
  const lines = readme.split('\n');
  expect(lines.length).toBeLessThanOrEqual(150);
  const commands = lines.slice(0, 16).filter((line) => line.startsWith('    '));
  expect(commands).toEqual(['    npm ci && npm start', '    npm ci && npm test']);
});

test('the README shows the console and a terminal, in small files (test/models/pictures.ts makes them)', () => {
  const images = [...readme.matchAll(/!\[[^\]]+\]\(([^)]+)\)/g)].map(([, file]) => file);
  expect(images).toEqual(['docs/images/terminal.svg', 'docs/images/console.png']);
  for (const file of images) expect(statSync(join(root, file)).size).toBeLessThanOrEqual(150_000);
});

test('every link of the README leads to a file and a heading', () => {
  for (const [, target, anchor] of readme.matchAll(/\]\(([^)#]*)(?:#([^)]+))?\)/g)) {
    if (/^https?:/.test(target)) continue;
    expect([target, existsSync(join(root, target))]).toEqual([target, true]);
    if (anchor === undefined) continue;
    const titles = [...readFileSync(join(root, target), 'utf8').matchAll(/^#+ (.*)$/gm)].map(([, title]) => title);
    const anchors = titles.map((title) =>
      title
        .toLowerCase()
        .replace(/[^\w\- ]/g, '')
        .replaceAll(' ', '-'),
    );
    expect([target, anchors]).toEqual([target, expect.arrayContaining([anchor])]);
  }
});
