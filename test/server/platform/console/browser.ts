import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { type Browser, chromium, type Page } from 'playwright-core';
import { ConsoleFiles } from '../../../../server/platform/api/console-files';
import { NodeTransport } from '../../../../server/http/node';
import { FakeService } from './fake-service';

const root = join(__dirname, '../../../..');
const source = join(root, 'server/platform/console');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
/** Folder for screenshots. No screenshots are taken if it is not set. */
const pictures = process.env.CONSOLE_PICTURES;
/** Below the time limit of a test, so that the step that waited is reported. */
const TIMEOUT_MS = 50_000;
const POLL_MS = 20;

/** The Chromium in CHROMIUM_PATH or in PATH, or undefined if there is none. */
export function findBrowser(): string | undefined {
  const configured = process.env.CHROMIUM_PATH;
  if (configured !== undefined && configured !== '') return configured;
  for (const name of ['chromium', 'chromium-browser', 'google-chrome']) {
    const { status, stdout } = spawnSync('which', [name], { encoding: 'utf8' });
    if (status === 0) return stdout.trim();
  }
  return undefined;
}

export interface PageOptions {
  width?: number;
  height?: number;
  locale?: string;
  theme?: 'light' | 'dark';
}

/** A Chromium with the built console. Each page has a separate context and fake service. */
export class ConsoleBrowser {
  readonly folder: string;
  readonly #files: ConsoleFiles;
  readonly #browser: Browser;
  readonly #pages = new Set<ConsolePage>();

  private constructor(folder: string, browser: Browser) {
    this.folder = folder;
    this.#files = new ConsoleFiles(folder, { isSecure: false });
    this.#browser = browser;
  }

  static async start(executablePath: string): Promise<ConsoleBrowser> {
    const folder = buildConsole();
    return new ConsoleBrowser(
      folder,
      await chromium.launch({ executablePath, args: ['--no-sandbox'], timeout: 2 * TIMEOUT_MS }),
    );
  }

  async open({ width = 1280, height = 900, locale = 'en', theme = 'light' }: PageOptions = {}): Promise<ConsolePage> {
    const service = new FakeService();
    const transport = new NodeTransport({
      maxBodyBytes: 1 << 20,
      bodyTimeoutMs: 10_000,
      handler: (request, reply) =>
        request.path.startsWith('/api/') ? service.handle(request, reply) : this.#files.handle(request, reply),
    });
    const port = await transport.listen('127.0.0.1', 0);
    const context = await this.#browser.newContext({
      viewport: { width, height },
      locale,
      colorScheme: theme,
      reducedMotion: 'reduce',
      bypassCSP: false,
    });
    context.setDefaultTimeout(TIMEOUT_MS);
    const tab = new ConsolePage(await context.newPage(), service, `http://127.0.0.1:${port}`, async () => {
      this.#pages.delete(tab);
      await context.close();
      await transport.close();
    });
    this.#pages.add(tab);
    return tab;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#pages].map((tab) => tab.close()));
    await this.#browser.close();
  }
}

/** A browser page with a separate fake service. */
export class ConsolePage {
  /** Script errors and policy violations since the last navigation. */
  readonly problems: string[] = [];

  constructor(
    readonly page: Page,
    readonly service: FakeService,
    readonly url: string,
    readonly close: () => Promise<void>,
  ) {
    page.on('pageerror', (error) => this.problems.push(String(error)));
    page.on('console', (message) => {
      // The browser also reports expected responses such as 401 and 404.
      if (message.type() === 'error' && !message.text().includes('Failed to load resource'))
        this.problems.push(message.text());
    });
  }

  goto(path: string) {
    this.problems.length = 0;
    return this.page.goto(this.url + path);
  }

  /** Polls from here, because Playwright's own polling evaluates strings in the page, which the policy refuses. */
  async until(expression: string): Promise<void> {
    for (const end = performance.now() + TIMEOUT_MS; !(await this.page.evaluate<boolean>(expression));) {
      if (performance.now() > end) throw new Error(`never true: ${expression}`);
      await delay(POLL_MS);
    }
  }

  /** Waits for a call of the page to a path that ends in `suffix`. */
  async sent(method: string, suffix: string): Promise<FakeService['calls'][number]> {
    for (const end = performance.now() + TIMEOUT_MS; ; await delay(POLL_MS)) {
      const call = this.service.calls.find(({ method: m, path }) => m === method && path.endsWith(suffix));
      if (call !== undefined) return call;
      if (performance.now() > end) throw new Error(`never called: ${method} ${suffix}`);
    }
  }

  /** Waits until nothing is loading: no skeleton, no hidden editor, no empty log, no empty plot. */
  async settle(): Promise<void> {
    await this.page.waitForSelector('h1');
    await this.until(SETTLED);
  }

  /** The serious and critical findings of axe. */
  async axeFaults(): Promise<string[]> {
    // Evaluated instead of added as a script, which the policy would refuse.
    await this.page.evaluate(`window.axe === undefined && ${axe}`);
    const { violations } = await this.page.evaluate<any>(
      "window.axe.run(document, { resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'] })",
    );
    const serious = violations.filter(({ impact }: any) => impact === 'serious' || impact === 'critical');
    return serious.map(({ id: rule, nodes }: any) => {
      const texts = nodes.slice(0, 4).map((node: any) => `${node.html.slice(0, 160)} ${node.any?.[0]?.message ?? ''}`);
      return `${rule}: ${texts.join(' | ')}`;
    });
  }

  async picture(name: string): Promise<void> {
    if (pictures === undefined) return;
    mkdirSync(pictures, { recursive: true });
    await this.page.screenshot({ path: join(pictures, `${name}.png`), fullPage: true });
  }
}

const SETTLED = `(() => {
  const status = document.querySelector('[role="status"] > .visually-hidden')?.textContent ?? '';
  return document.querySelector('.skeleton, .code-editor[hidden]') === null
    && [...document.querySelectorAll('.log')].every((log) => log.querySelector('.log-line, .log-note') !== null)
    && [...document.querySelectorAll('.plot-canvas')].every((plot) => plot.querySelector('canvas') !== null)
    && !/…$/.test(status);
})()`;

/** Builds the console once for all test files that run on the same sources. Returns the folder of the build. */
function buildConsole(): string {
  const builds = join(root, 'build/console');
  const folder = join(builds, hashOfSources());
  if (existsSync(folder)) return folder;
  mkdirSync(builds, { recursive: true });
  const unfinished = mkdtempSync(join(builds, 'unfinished-'));
  execFileSync(
    process.execPath,
    [join(root, 'node_modules/vite/bin/vite.js'), 'build', source, '--outDir', unfinished, '--emptyOutDir'],
    { env: { ...process.env, NODE_ENV: 'production' }, stdio: ['ignore', 'ignore', 'inherit'] },
  );
  try {
    renameSync(unfinished, folder);
  } catch {
    // Another test file has finished the same build first.
    rmSync(unfinished, { recursive: true, force: true });
  }
  return folder;
}

function hashOfSources(): string {
  const hash = createHash('sha256').update(readFileSync(join(root, 'package-lock.json')));
  const names = readdirSync(source, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();
  for (const name of names) hash.update(name).update(readFileSync(name));
  return hash.digest('hex').slice(0, 16);
}
