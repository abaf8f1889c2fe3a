// Which files of the repository are pages of the site, and at which path.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, posix } from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = join(dirname(fileURLToPath(import.meta.url)), '../..');

const list = (folder, pattern, options) =>
  readdirSync(join(root, folder), { encoding: 'utf8', ...options })
    .map((name) => name.replaceAll('\\', '/'))
    .filter((name) => pattern.test(name) && !name.startsWith('.vitepress'))
    .sort();

/** Path in the repository to path on the site. */
export function sitePages() {
  const pages = new Map([
    ['docs/.vitepress/home.md', 'index.md'],
    ['docs/README.md', 'overview.md'],
    ['CHANGELOG.md', 'changelog.md'],
    ['models/demo/README.md', 'demo-model.md'],
    ['benchmarks/peers/README.md', 'results/method.md'],
    ['benchmarks/results/README.md', 'results/index.md'],
  ]);
  const add = (from, to) => pages.has(from) || pages.set(from, to);
  for (const name of list('docs', /\.md$/, { recursive: true })) add(`docs/${name}`, name);
  for (const name of list('benchmarks/results', /\.md$/)) add(`benchmarks/results/${name}`, `results/${name}`);
  for (const name of list('examples', /\.mjs$/)) add(`examples/${name}`, `examples/${name.replace('.mjs', '.md')}`);
  return pages;
}

/** The titles and links below a heading of the overview. */
function linksBelow(heading) {
  const [, section] = readFileSync(join(root, 'docs/README.md'), 'utf8').split(`\n## ${heading}\n`);
  const items = section.split('\n## ')[0].matchAll(/^- \[([^\]]+)\]\(([^)]+)\)/gm);
  return [...items].map(([, text, link]) => ({ text, link: posix.join('/', link.replace(/\.md$/, '')) }));
}

export function sidebar() {
  const examples = [...sitePages().values()].filter((page) => page.startsWith('examples/'));
  return [
    { text: 'Getting started', link: '/getting-started' },
    ...['How-to guides', 'Reference', 'Explanation'].map((text) => ({ text, items: linksBelow(text) })),
    {
      text: 'Examples',
      collapsed: true,
      items: examples.map((page) => ({ text: page.slice(9, -3), link: `/${page.slice(0, -3)}` })),
    },
    { text: 'Architecture', link: '/architecture' },
    { text: 'Changelog', link: '/changelog' },
  ];
}
