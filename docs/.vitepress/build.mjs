// Builds the site into build/site/html: copies the pages, writes the library's API reference with TypeDoc, runs VitePress,
// and checks every link and heading. Needs no network.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, posix } from 'node:path';
import { root, sitePages } from './pages.mjs';

const pagesFolder = join(root, 'build/site/pages');
const htmlFolder = join(root, 'build/site/html');
const pages = sitePages();

/** Links between files of the repository become links between pages. A link to a source file becomes its text. */
function withSiteLinks(text, from, to) {
  return text.replace(/(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]*)\)/g, (all, image, title, link) => {
    const [target, anchor] = link.split('#');
    if (/^(https?|mailto):/.test(link) || target === '') return all;
    const source = posix.normalize(posix.join(posix.dirname(from), target));
    const page = pages.get(source) ?? pages.get(posix.join(source, 'README.md'));
    if (image !== '') return `![${title}](${posix.relative(posix.dirname(to), copyImage(source))})`;
    if (page !== undefined) {
      const path = posix.relative(posix.dirname(to), page);
      return `[${title}](${path.startsWith('.') ? path : `./${path}`}${anchor === undefined ? '' : `#${anchor}`})`;
    }
    if (!existsSync(join(root, source))) throw new Error(`${from}: there is no file ${source}`);
    return title;
  });
}

function copyImage(source) {
  const to = `images/${posix.basename(source)}`;
  write(to, readFileSync(join(root, source)));
  return to;
}

function write(page, content) {
  mkdirSync(dirname(join(pagesFolder, page)), { recursive: true });
  writeFileSync(join(pagesFolder, page), content);
}

function run(bin, args) {
  const { status } = spawnSync(process.execPath, [join(root, 'node_modules', bin), ...args], {
    cwd: root,
    stdio: 'inherit',
  });
  if (status !== 0) process.exit(status ?? 1);
}

/** Returns the links of the built pages that lead to no page, or to no heading of it. */
function deadLinks() {
  const files = readdirSync(htmlFolder, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.html'));
  const html = new Map(files.map((name) => [name, readFileSync(join(htmlFolder, name), 'utf8')]));
  const ids = new Map([...html].map(([name, text]) => [name, new Set(idsOf(text))]));
  return [...html].flatMap(([name, text]) =>
    [...text.matchAll(/<a [^>]*?href="([^"]*)"/g)].flatMap(([, href]) => {
      const [path, anchor] = href.split('#');
      if (/^[a-z]+:/.test(href)) return [];
      const target = path === '' ? name : posix.join(posix.dirname(`/${name}`), path).slice(1) || 'index.html';
      const file = posix.resolve('/', path.startsWith('/') ? path : target).slice(1);
      const page = file === '' || path.endsWith('/') ? posix.join(file, 'index.html') : file;
      const found = ids.get(page) ?? ids.get(`${page}.html`);
      if (found === undefined) return existsSync(join(htmlFolder, page)) ? [] : [`${name}: ${href}`];
      return anchor === undefined || anchor === '' || found.has(decodeURIComponent(anchor)) ? [] : [`${name}: ${href}`];
    }),
  );
}

const idsOf = (text) => [...text.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id);

rmSync(join(root, 'build/site'), { recursive: true, force: true });
for (const [from, to] of pages) {
  const text = readFileSync(join(root, from), 'utf8');
  const isCode = from.endsWith('.mjs');
  write(to, isCode ? `# ${posix.basename(from)}\n\n\`\`\`js\n${text}\`\`\`\n` : withSiteLinks(text, from, to));
}
run('typedoc/bin/typedoc', ['--options', 'docs/.vitepress/typedoc.json', '--logLevel', 'Warn']);
run('vitepress/bin/vitepress.js', ['build', 'docs']);
const dead = deadLinks();
for (const link of dead) console.error(`dead link in ${link}`);
if (dead.length > 0) process.exit(1);
const built = readdirSync(htmlFolder, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.html'));
console.log(`${built.length} pages in build/site/html. Every link leads to a page and a heading.`);
