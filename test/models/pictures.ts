/**
 * Makes the pictures of the README: docs/images/console.png, a screenshot of the console in Chromium, and
 * docs/images/terminal.svg, a recording of commands. Both show real runs with the embedded model:
 *
 *     node -r ./test/oracle/register-ts.cjs test/models/pictures.ts
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { killAll } from '../fakes/server-process';
import { findBrowser } from '../server/platform/console/browser';
import { ADMIN, capstan, makeDataDir, startService } from './service-process';

const root = join(__dirname, '../..');
const images = join(root, 'docs/images');
const MAX_BYTES = 150_000;

async function screenshot(): Promise<void> {
  const { dataDir, passwordFile, remove } = makeDataDir();
  const bootstrap = ['--bootstrap-email', ADMIN.email, '--bootstrap-password-file', passwordFile];
  const service = await startService(dataDir, bootstrap);
  const browser = await chromium.launch({ executablePath: findBrowser()!, args: ['--no-sandbox'] });
  try {
    const created = await capstan(['tokens', 'create', '--data-dir', dataDir, '--email', ADMIN.email, '--name', 'cli']);
    const env = { CAPSTAN_URL: service.url, CAPSTAN_TOKEN: created.stdout.trim() };
    for (const name of ['chat', 'support', 'batch']) {
      const { code, stderr } = await capstan(['deploy', name, '--memory', '1G', '--wait'], env);
      if (code !== 0) throw new Error(stderr);
    }
    const { stdout } = await capstan(['deployments', 'get', 'chat', '--json'], env);
    const { url } = JSON.parse(stdout) as { url: string };
    for (const content of ['What is Capstan?', 'Count from 1 to 12.', 'What can Capstan do?'])
      await fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ messages: [{ role: 'user', content }] }),
      }).then((response) => response.text());

    const context = await browser.newContext({ locale: 'en', viewport: { width: 1200, height: 750 } });
    const page = await context.newPage();
    await page.goto(service.url);
    await page.getByLabel('Email').fill(ADMIN.email);
    await page.getByLabel('Password', { exact: true }).fill(ADMIN.password);
    await page.getByRole('button', { name: 'Sign in', exact: true }).click();
    await page.getByRole('heading', { level: 1, name: 'Deployments' }).waitFor();
    await page.getByRole('link', { name: 'chat', exact: true }).click();
    await page.getByRole('heading', { level: 1, name: 'chat' }).waitFor();
    await page.waitForLoadState('networkidle').catch(() => {});
    await page.screenshot({ path: join(images, 'console.png') });
    for (const name of ['chat', 'support', 'batch']) await capstan(['deployments', 'delete', name, '--yes'], env);
  } finally {
    await browser.close();
    killAll();
    remove();
  }
}

/** A line of the terminal, and the milliseconds after which it is complete. */
interface Line {
  text: string;
  isCommand: boolean;
  atMs: number;
}

const COMMANDS = [
  'npx capstan doctor',
  `npx capstan run -p 'What is Capstan?'`,
  `npx capstan run -p 'Count from 1 to 12.'`,
];
const TYPING_MS = 35;
const PAUSE_MS = 700;
const COLUMNS = 92;
const LINE_HEIGHT = 18;

/** Runs a command, and returns the lines of its standard output with the time at which each was complete. */
async function record(command: string, cwd: string): Promise<{ text: string; atMs: number }[]> {
  const child = spawn(process.execPath, [join(root, 'dist/server/main.js'), ...shellWords(command).slice(2)], {
    cwd,
    env: { ...process.env, NO_COLOR: '1', COLUMNS: String(COLUMNS) },
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  const startedMs = performance.now();
  const lines: { text: string; atMs: number }[] = [];
  let open = '';
  child.stdout.setEncoding('utf8').on('data', (piece: string) => {
    const parts = (open + piece).split('\n');
    open = parts.pop()!;
    lines.push(...parts.map((text) => ({ text, atMs: performance.now() - startedMs })));
  });
  const code = await new Promise((resolve) => child.on('close', resolve));
  if (code !== 0) throw new Error(`${command}: exit code ${String(code)}`);
  if (open !== '') lines.push({ text: open, atMs: performance.now() - startedMs });
  return lines;
}

/** The words of a command whose quotes are single ones. */
function shellWords(command: string): string[] {
  return [...command.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, word]) => quoted ?? word);
}

async function recording(): Promise<void> {
  const cwd = mkdtempSync(join(tmpdir(), 'capstan-recording-'));
  const lines: Line[] = [];
  let nowMs = 500;
  for (const command of COMMANDS) {
    nowMs += command.length * TYPING_MS;
    lines.push({ text: command, isCommand: true, atMs: nowMs });
    const output = await record(command, cwd);
    for (const { text, atMs } of output)
      for (const part of text.match(new RegExp(`.{1,${COLUMNS}}`, 'g')) ?? [''])
        lines.push({ text: part, isCommand: false, atMs: nowMs + atMs });
    nowMs += (output.at(-1)?.atMs ?? 0) + PAUSE_MS;
  }
  rmSync(cwd, { recursive: true });
  writeFileSync(join(images, 'terminal.svg'), draw(lines, nowMs + 4_000));
}

const escape = (text: string): string => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');

/** Each line appears at its time, and all stay until the recording begins again. Without animations, all are shown. */
function draw(lines: readonly Line[], totalMs: number): string {
  const height = lines.length * LINE_HEIGHT + 52;
  const width = COLUMNS * 7.85 + 32;
  const rules = lines.map(({ atMs }, i) => {
    const share = Math.round((atMs / totalMs) * 10_000) / 100;
    return `@keyframes l${i}{0%,${share}%{opacity:0}${share + 0.01}%,100%{opacity:1}}`;
  });
  const animations = lines.map((_, i) => `#l${i}{animation:l${i} ${totalMs / 1000}s step-end infinite}`);
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" role="img">`,
    '<title>A recording of capstan doctor and capstan run with the embedded model</title>',
    `<style>text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d7dde5;white-space:pre}.p{fill:#7fd88f}${rules.join('')}@media (prefers-reduced-motion:no-preference){${animations.join('')}}</style>`,
    `<rect width="${width}" height="${height}" rx="8" fill="#161b22"/>`,
    '<circle cx="20" cy="18" r="5" fill="#ff5f57"/><circle cx="38" cy="18" r="5" fill="#febc2e"/><circle cx="56" cy="18" r="5" fill="#28c840"/>',
    ...lines.map(({ text, isCommand }, i) => {
      const prompt = isCommand ? '<tspan class="p">$ </tspan>' : '';
      return `<text id="l${i}" x="16" y="${48 + i * LINE_HEIGHT}" xml:space="preserve">${prompt}${escape(text)}</text>`;
    }),
    '</svg>',
    '',
  ].join('\n');
}

async function main(): Promise<void> {
  const chosen = process.argv.slice(2);
  if (chosen.length === 0 || chosen.includes('terminal')) await recording();
  if (chosen.length === 0 || chosen.includes('console')) await screenshot();
  for (const name of ['console.png', 'terminal.svg']) {
    const { size } = statSync(join(images, name), { throwIfNoEntry: false }) ?? { size: 0 };
    if (size > MAX_BYTES) throw new Error(`${name}: expected at most ${MAX_BYTES} bytes, got ${size}`);
  }
}

main().then(
  () => process.exit(0),
  (error: unknown) => {
    console.error(error);
    process.exit(1);
  },
);
