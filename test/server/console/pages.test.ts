/** Every page in a real browser: both languages, both themes, wide and narrow, held against axe. Skipped by name where there is no Chromium. */
import { mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import { type Browser, chromium, type Page } from 'playwright-core';
import { findBrowser, startConsole } from './browser';
import { DEPLOYMENTS, id, ME, QUOTAS } from './fixtures';
import { SECRET } from './fake-service';

const browserPath = findBrowser();
const inBrowser = browserPath === undefined ? describe.skip : describe;
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
/** Where pictures of the pages go, for those who look at them. */
const pictures = process.env.CONSOLE_PICTURES;

/** Each language, each theme and each width once; for pictures every width in both themes. */
const LOOKS = [
  { locale: 'en', theme: 'light', width: 1280, height: 900 },
  { locale: 'zh-CN', theme: 'dark', width: 390, height: 844 },
  ...(pictures === undefined
    ? []
    : ([
        { locale: 'zh-CN', theme: 'dark', width: 1280, height: 900 },
        { locale: 'en', theme: 'light', width: 390, height: 844 },
      ] as const)),
] as const;

const PAGES: Record<string, string> = {
  deployments: '/deployments',
  'deployment-new': '/deployments/new',
  deployment: `/deployments/${id('dep', 1)}`,
  'deployment-pending': `/deployments/${id('dep', 2)}`,
  'deployment-failed': `/deployments/${id('dep', 3)}`,
  'deployment-update-failed': `/deployments/${id('dep', 5)}`,
  versions: `/deployments/${id('dep', 1)}/versions`,
  version: `/deployments/${id('dep', 1)}/versions/2`,
  'version-failed': `/deployments/${id('dep', 1)}/versions/1`,
  'version-new': `/deployments/${id('dep', 1)}/versions/new`,
  logs: `/deployments/${id('dep', 1)}/versions/3/logs`,
  metrics: `/deployments/${id('dep', 1)}/metrics`,
  access: `/deployments/${id('dep', 1)}/access`,
  test: `/deployments/${id('dep', 1)}/test`,
  settings: `/deployments/${id('dep', 1)}/settings`,
  containers: '/containers',
  'container-new': '/containers/new',
  container: `/containers/${id('con', 1)}`,
  'container-failed': `/containers/${id('con', 2)}`,
  'container-edit': `/containers/${id('con', 2)}/edit`,
  'container-deploy': `/containers/${id('con', 1)}/deploy`,
  resources: '/data',
  orgs: '/orgs',
  org: `/orgs/${id('org', 1)}`,
  'org-keys': `/orgs/${id('org', 1)}/keys`,
  'org-settings': `/orgs/${id('org', 1)}/settings`,
  'org-viewer': `/orgs/${id('org', 2)}/settings`,
  webhooks: '/webhooks',
  quotas: '/quotas',
  audit: '/audit',
  account: '/account',
  'account-security': '/account/security',
  'account-keys': '/account/keys',
  'account-tokens': '/account/tokens',
  'not-found': '/nowhere',
};
const IS_OPEN_TAB_IN_SIGHT = `(() => {
  const open = document.querySelector('.tabs [aria-current]')?.getBoundingClientRect(), tabs = document.querySelector('.tabs')?.getBoundingClientRect();
  return open === undefined || (open.left >= tabs.left - 1 && open.right <= tabs.right + 1);
})()`;
const OPEN_PAGES: Record<string, string> = {
  'sign-in': '/deployments',
  setup: '/bootstrap#abc',
  invitation: '/invitation#abc',
};

inBrowser(`the console in ${browserPath ?? 'a browser (none found: set CHROMIUM_PATH)'}`, () => {
  let site: Awaited<ReturnType<typeof startConsole>>;
  let browser: Browser;
  beforeAll(async () => {
    site = await startConsole();
    browser = await chromium.launch({ executablePath: browserPath, args: ['--no-sandbox'], timeout: 200_000 });
  });
  afterAll(async () => {
    await browser?.close();
    await site?.close();
  });
  beforeEach(() => {
    site.service.calls.length = 0;
    Object.assign(site.service, {
      isSignedIn: true,
      isEmpty: false,
      failure: undefined,
      me: structuredClone(ME),
      deployments: structuredClone(DEPLOYMENTS),
      quotas: structuredClone(QUOTAS),
    });
  });

  const problems: string[] = [];
  async function openPage(options: { width?: number; height?: number; locale?: string } = {}): Promise<Page> {
    const context = await browser.newContext({
      viewport: { width: options.width ?? 1280, height: options.height ?? 900 },
      locale: options.locale ?? 'en',
      reducedMotion: 'reduce',
      bypassCSP: false,
    });
    context.setDefaultTimeout(100_000);
    const page = await context.newPage();
    problems.length = 0;
    page.on('pageerror', (error) => problems.push(String(error)));
    page.on('console', (message) => {
      // A refused sign-in and a missing object are answers; the browser tells of them all the same.
      if (message.type() === 'error' && !message.text().includes('Failed to load resource'))
        problems.push(message.text());
    });
    return page;
  }

  /** By evaluations from here: the browser's own waiting makes code of a string in the page, which its policy refuses. */
  async function until(page: Page, expression: string): Promise<void> {
    for (const end = performance.now() + 100_000; !(await page.evaluate<boolean>(expression)); await delay(50)) {
      if (performance.now() > end) throw new Error(`never true: ${expression}`);
    }
  }

  async function settle(page: Page): Promise<void> {
    await page.waitForSelector('h1');
    await until(
      page,
      `document.querySelector('.skeleton') === null && !/…$/.test(document.querySelector('[role="status"] > .visually-hidden')?.textContent ?? '')`,
    );
  }

  async function axeFaults(page: Page): Promise<unknown[]> {
    // Evaluated, not added as a script: the policy of the page would refuse that.
    await page.evaluate(axe);
    const { violations } = await page.evaluate<any>(
      "window.axe.run(document, { resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'] })",
    );
    const serious = violations.filter(({ impact }: any) => impact === 'serious' || impact === 'critical');
    return serious.map(
      ({ id: rule, nodes }: any) =>
        `${rule}: ${nodes
          .slice(0, 4)
          .map((node: any) => `${node.html.slice(0, 160)} ${node.any?.[0]?.message ?? ''}`)
          .join(' | ')}`,
    );
  }

  async function picture(page: Page, name: string): Promise<void> {
    if (pictures === undefined) return;
    mkdirSync(pictures, { recursive: true });
    await page.screenshot({ path: join(pictures, `${name}.png`), fullPage: true });
  }

  describe.each(LOOKS)('$locale, $theme, $width wide', ({ locale, theme, width, height }) => {
    let page: Page;
    beforeAll(async () => {
      page = await openPage({ width, height, locale });
      await page.emulateMedia({ colorScheme: theme, reducedMotion: 'reduce' });
    });
    afterAll(() => page.context().close());

    test.each([...Object.entries(PAGES), ...Object.entries(OPEN_PAGES)])('%s', async (name, path) => {
      site.service.isSignedIn = !(name in OPEN_PAGES);
      Object.assign(site.service.me, { locale, theme });
      await page.goto(site.url + path);
      await settle(page);
      await picture(page, `${name}-${locale}-${theme}-${width}`);
      expect(await axeFaults(page)).toEqual([]);
      expect(
        await page.evaluate<number>('document.documentElement.scrollWidth - document.documentElement.clientWidth'),
      ).toBeLessThanOrEqual(0);
      expect(await page.evaluate(IS_OPEN_TAB_IN_SIGHT)).toBe(true);
      expect(await page.evaluate('document.documentElement.lang')).toBe(locale);
      expect(problems).toEqual([]);
      expect(await page.title()).not.toContain('owned');
      expect(/undefined|\[object|\{[a-z]+\}/.exec(await page.locator('body').innerText())).toBeNull();
    });
  });

  test('empty lists say what to do, and failures offer another attempt', async () => {
    const page = await openPage();
    site.service.isEmpty = true;
    for (const [name, path] of [
      ['deployments', '/deployments'],
      ['containers', '/containers'],
      ['keys', '/account/keys'],
      ['orgs', '/orgs'],
      ['audit', '/audit'],
      ['quotas', '/quotas'],
      ['resources', '/data'],
      ['webhooks', '/webhooks'],
    ]) {
      await page.goto(site.url + path);
      await page.waitForSelector('.empty');
      await picture(page, `empty-${name}`);
      expect(await axeFaults(page)).toEqual([]);
    }
    site.service.isEmpty = false;
    site.service.failure = { status: 500, code: 'internal_error', detail: 'the server could not finish this request' };
    await page.goto(`${site.url}/deployments`);
    await page.waitForSelector('[role="alert"]');
    await picture(page, 'error-deployments');
    site.service.failure = undefined;
    await page.getByRole('button', { name: 'Try again' }).click();
    await page.getByRole('link', { name: 'Support assistant' }).waitFor();
    await page.context().close();
  });

  test('signing in leads to the page that was asked for; the wrong password says so', async () => {
    const page = await openPage();
    site.service.isSignedIn = false;
    await page.goto(`${site.url}/containers`);
    await page.getByLabel('Email').fill('ada@example.com');
    await page.getByLabel('Password').fill('wrong');
    await page.keyboard.press('Enter');
    await page.getByText('The address, the password or the code is wrong').waitFor();
    await page.getByLabel('Password').fill('correct horse');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { level: 1, name: 'Containers' }).waitFor();
    await page.context().close();
  });

  test('a session that ends while somebody types keeps what was typed', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/deployments/new`);
    await page.getByLabel('Name', { exact: true }).fill('My model');
    site.service.isSignedIn = false;
    await page.getByRole('button', { name: 'Deploy', exact: true }).click();
    await page.getByRole('dialog').waitFor();
    await picture(page, 'session-ended');
    await page.getByRole('dialog').getByLabel('Password').fill('correct horse');
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    expect(await page.getByLabel('Name', { exact: true }).inputValue()).toBe('My model');
    await page.context().close();
  });

  test('one-click deploy sends what was changed, and waits on the page of the deployment', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/containers`);
    await page.getByRole('link', { name: 'Deploy', exact: true }).first().click();
    await page.getByLabel('Memory', { exact: true }).fill('8192');
    await page.getByRole('button', { name: 'Deploy', exact: true }).click();
    await page.getByRole('heading', { level: 1, name: 'Starting up' }).waitFor();
    await page.getByRole('list', { name: 'Progress' }).waitFor();
    const sent = site.service.calls.find(({ method, path }) => method === 'POST' && path.endsWith('/deploy'))!;
    expect(sent.body).toMatchObject({ name: 'fine-tuning', access_control: false, compute: { memory_mb: 8192 } });
    expect(sent.body).not.toHaveProperty('env');
    expect(sent.body).not.toHaveProperty('bindings');
    await page.context().close();
  });

  test('a key is shown once, and not before somebody says that it is kept', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/account/keys`);
    await page.getByRole('button', { name: 'Create key' }).click();
    await page.getByLabel('Name', { exact: true }).fill('Phone');
    await picture(page, 'key-dialog');
    expect(await axeFaults(page)).toEqual([]);
    await page.getByRole('dialog').getByRole('button', { name: 'Create key' }).click();
    await page.getByText(SECRET).waitFor();
    await picture(page, 'key-secret');
    await page.keyboard.press('Escape');
    await page.getByText(SECRET).waitFor();
    expect(await page.getByText('applied 1/1').first().isVisible()).toBe(true);
    await page.getByLabel('I have copied it').check();
    await page.getByRole('button', { name: 'Done' }).click();
    await page.getByText(SECRET).waitFor({ state: 'detached' });
    expect(await page.content()).not.toContain(SECRET);
    await page.context().close();
  });

  test('access control goes on at once, and off after a question', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/deployments/${id('dep', 6)}/access`);
    const access = page.getByRole('switch', { name: 'Require an API key' });
    await access.click();
    await page.getByText('No key opens this deployment yet').waitFor();
    expect(await access.getAttribute('aria-checked')).toBe('true');
    await access.click();
    await page.getByRole('dialog', { name: 'Open to everybody?' }).getByRole('button', { name: 'Make public' }).click();
    await page.getByText('Everybody who knows the URL').waitFor();
    await page.context().close();
  });

  test('deleting asks for the name', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/deployments/${id('dep', 1)}`);
    await page.getByRole('button', { name: 'Actions' }).click();
    await page.getByRole('menuitem', { name: 'Delete' }).click();
    const confirm = page.getByRole('button', { name: 'Delete deployment' });
    expect(await confirm.isDisabled()).toBe(true);
    await picture(page, 'delete-dialog');
    await page.getByLabel(/To confirm, type/).fill('Support assistant');
    await confirm.click();
    await page.getByRole('heading', { level: 1, name: 'Deployments' }).waitFor();
    expect(site.service.deployments.map(({ id: known }) => known)).not.toContain(id('dep', 1));
    await page.context().close();
  });

  test('a change that somebody else was first with is explained, and what is there can be loaded', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/deployments/${id('dep', 1)}/settings`);
    await page.getByLabel('Name', { exact: true }).fill('Mine');
    Object.assign(site.service.deployments[0], { name: 'Theirs', rev: 99 });
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByText('Somebody else changed this first').waitFor();
    expect(site.service.deployments[0].name).toBe('Theirs');
    await page.context().close();
  });

  test('the test tool shows the true 401, then a streamed answer piece by piece', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/deployments/${id('dep', 1)}/test`);
    await page.getByRole('button', { name: 'HTTP request' }).click();
    await page.getByRole('button', { name: 'Send' }).click();
    await page.getByText('401 Unauthorized').waitFor();
    await picture(page, 'test-401');
    await page.getByRole('button', { name: 'With a key' }).click();
    await page.getByLabel('API key', { exact: true }).fill(SECRET);
    await page.getByRole('button', { name: 'Send' }).click();
    await page.getByText('200 OK').waitFor();
    const events = page.getByRole('list', { name: 'Events' }).getByRole('listitem');
    await events.nth(5).waitFor();
    expect(await events.count()).toBe(6);
    await page.getByRole('button', { name: /^Headers \(3\)/ }).click();
    await page.getByText('<script>alert(1)</script>').waitFor();
    await page.getByRole('button', { name: /^Events/ }).click();
    await picture(page, 'test-answer');
    expect(await axeFaults(page)).toEqual([]);
    await page.getByRole('button', { name: 'Chat', exact: true }).click();
    await page.getByRole('button', { name: 'With a key' }).click();
    await page.getByLabel('API key', { exact: true }).fill(SECRET);
    await page.getByRole('textbox', { name: 'Message', exact: true }).fill('Hello');
    await page.keyboard.press('Enter');
    await page.getByText('Hello there, <b>friend</b>!').waitFor();
    await page.getByText('4 tokens').waitFor();
    await picture(page, 'chat');
    await page.context().close();
  });

  test('the log follows, and is searched; what strangers wrote stays text', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/deployments/${id('dep', 1)}/versions/3/logs`);
    await page.getByText('a line that came later').waitFor();
    await page.getByText('<img src=x onerror').waitFor();
    expect(await page.locator('.log img').count()).toBe(0);
    expect(await page.locator('.log').innerText()).toContain('<U+202E>evil');
    await page.getByRole('searchbox', { name: 'Search the log' }).fill('context LENGTH');
    await page.locator('.log mark').first().waitFor();
    await until(
      page,
      "[...document.querySelectorAll('.log-line')].every((line) => line.textContent.includes('context length'))",
    );
    await page.getByRole('searchbox', { name: 'Search the log' }).fill('');
    await page.getByText('replica 0 started on L2').waitFor();
    await page.getByRole('combobox', { name: 'Level' }).selectOption('Warnings and above');
    await until(
      page,
      "[...document.querySelectorAll('.log-line')].every((line) => line.dataset.level === 'warn' || line.textContent.includes('came later'))",
    );
    await page.context().close();
  });

  test('an administrator makes another one, and takes the role away', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/quotas`);
    const grace = page.getByRole('row', { name: /grace/ });
    await grace.waitFor();
    expect(await page.getByRole('row', { name: /ada@/ }).getByText('Administrator', { exact: true }).count()).toBe(1);
    await grace.getByRole('button', { name: 'Make administrator: grace@example.com' }).click();
    expect(await axeFaults(page)).toEqual([]);
    await picture(page, 'quota-role');
    await page.getByRole('dialog').getByRole('button', { name: 'Make administrator' }).click();
    await grace.getByText('Administrator', { exact: true }).waitFor();
    await grace.getByRole('button', { name: 'Take role away: grace@example.com' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Take role away' }).click();
    await grace.getByText('Administrator', { exact: true }).waitFor({ state: 'detached' });
    expect(site.service.calls.filter(({ method }) => method === 'PUT').map(({ path, body }) => [path, body])).toEqual(
      [true, false].map((enabled) => [`/users/${QUOTAS[2].owner.id}/administrator`, { enabled }]),
    );
    await page.context().close();
  });

  test('an administrator changes quotas, and deletes an account by typing its address', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/quotas`);
    const acme = page.getByRole('row', { name: /acme/ });
    await acme.getByRole('button', { name: 'Change quotas' }).click();
    await page.getByLabel('GPUs at most').fill('x');
    await page.getByText('Expected a number').waitFor();
    await page.getByLabel('GPUs at most').fill('8');
    await page.getByLabel('Deployments at most').fill('');
    expect(await axeFaults(page)).toEqual([]);
    await picture(page, 'quota-dialog');
    await page.getByRole('button', { name: 'Save' }).click();
    await acme.getByText('1 of 8').waitFor();
    await acme.getByText('4, unlimited').waitFor();
    expect(await page.getByRole('button', { name: `Delete the account ${ME.email}` }).count()).toBe(0);
    await page.getByRole('button', { name: 'Delete the account grace@example.com' }).click();
    const confirm = page.getByRole('button', { name: 'Delete account', exact: true });
    expect(await confirm.isDisabled()).toBe(true);
    await page.getByRole('dialog').getByRole('textbox').fill('grace@example.com');
    await confirm.click();
    await page.getByRole('row', { name: /grace/ }).waitFor({ state: 'detached' });
    Object.assign(site.service.me, { is_admin: false });
    await page.goto(`${site.url}/quotas`);
    await page.getByRole('heading', { level: 1 }).waitFor();
    expect(await page.getByRole('link', { name: 'Accounts and quotas' }).count()).toBe(0);
    expect(await page.getByRole('table').count()).toBe(0);
    await page.context().close();
  });

  test('an address is changed, and an account ended, with the password', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/account`);
    await page.getByLabel('New address').fill('countess@example.com');
    await page.getByLabel('Current password').fill('wrong');
    await page.getByRole('button', { name: 'Change address' }).click();
    await page.getByText('The address, the password or the code is wrong').waitFor();
    await page.getByLabel('Current password').fill('correct horse');
    await page.getByRole('button', { name: 'Change address' }).click();
    await page.getByText('You sign in with countess@example.com').waitFor();
    await page.goto(`${site.url}/account/security`);
    await page.getByRole('button', { name: 'Delete account' }).click();
    await page.getByRole('dialog').getByLabel('Current password').fill('correct horse');
    await picture(page, 'account-end');
    await page.getByRole('dialog').getByRole('button', { name: 'Delete account' }).click();
    await page.getByRole('heading', { level: 1, name: 'Sign in' }).waitFor();
    await page.context().close();
  });

  test('everything on the list can be reached by keyboard, and the focus is seen', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/deployments`);
    await page.getByRole('link', { name: 'Support assistant' }).waitFor();
    await page.keyboard.press('Tab');
    expect(await page.evaluate('document.activeElement?.textContent')).toBe('Skip to the content');
    await page.keyboard.press('Enter');
    for (let i = 0; i < 8 && (await page.evaluate('document.activeElement?.textContent')) !== 'Support assistant'; i++)
      await page.keyboard.press('Tab');
    expect(await page.evaluate('getComputedStyle(document.activeElement).outlineStyle')).toBe('solid');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { level: 1, name: 'Support assistant' }).waitFor();
    expect(await page.evaluate('document.activeElement?.tagName')).toBe('H1');
    await page.getByRole('button', { name: 'Actions' }).focus();
    await page.keyboard.press('Enter');
    await page.keyboard.press('ArrowDown');
    expect(await page.evaluate('document.activeElement?.textContent')).toBe('Scale to zero');
    await page.keyboard.press('Escape');
    expect(await page.evaluate("document.activeElement?.getAttribute('aria-label')")).toBe('Actions');
    await page.context().close();
  });

  test('a webhook is made of groups and single events, its secret shown once; a test says what became of it', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/webhooks`);
    await page.getByRole('button', { name: 'Create webhook' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Address').fill('https://hooks.example.com/');
    await dialog.getByLabel('API keys').check();
    await dialog.getByLabel('Single events').fill('version.error');
    await picture(page, 'webhook-dialog');
    expect(await axeFaults(page)).toEqual([]);
    await dialog.getByRole('button', { name: 'Create webhook' }).click();
    await page.getByText('whsec_AAAA').waitFor();
    const sent = site.service.calls.find(({ method, path }) => method === 'POST' && path === '/webhooks')!;
    expect(sent.body).toEqual({
      url: 'https://hooks.example.com/',
      events: ['deployment.*', 'key.*', 'version.error'],
      owner: { type: 'user', id: ME.id },
    });
    await page.getByLabel('I have copied it').check();
    await page.getByRole('button', { name: 'Done' }).click();
    await page.getByRole('button', { name: 'Actions for https://hooks.example.com/capstan' }).click();
    await page.getByRole('menuitem', { name: 'Send a test' }).click();
    await page.getByText('Arrived: 204 after 12 ms').waitFor();
    await page.getByRole('button', { name: 'Actions for https://hooks.example.com/capstan' }).click();
    await page.getByRole('menuitem', { name: 'Deliveries' }).click();
    await page.getByText('answered 500 · 31 ms').waitFor();
    await picture(page, 'webhook-deliveries');
    expect(await axeFaults(page)).toEqual([]);
    // What waits is sent anyway, and a test is sent anew.
    expect(await page.getByRole('button', { name: /^Send again/ }).count()).toBe(1);
    await page.getByRole('button', { name: 'Send again: deployment.failed' }).click();
    await page.getByText('It is sent once more').waitFor();
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: 'Actions for https://hooks.example.com/capstan' }).click();
    await page.getByRole('menuitem', { name: 'End the old secret now' }).click();
    await page.getByRole('button', { name: 'Actions for https://elsewhere.example.com/in' }).click();
    await page.getByRole('menuitem', { name: 'Rotate the secret' }).click();
    await page.getByRole('dialog').getByLabel('The old secret works for').selectOption('1 hour');
    expect(await axeFaults(page)).toEqual([]);
    await picture(page, 'webhook-rotate');
    await page.getByRole('dialog').getByRole('button', { name: 'Rotate', exact: true }).click();
    await page.getByText('whsec_BBBB').waitFor();
    const asked = site.service.calls
      .filter(({ path }) => /\/webhooks\/.*\/(redeliver|rotate)/.test(path))
      .map(({ path, body }) => [path, body]);
    expect(asked).toEqual([
      [`/webhooks/${id('whk', 1)}/deliveries/${id('whd', 3)}/redeliver`, undefined],
      [`/webhooks/${id('whk', 1)}/rotate/finish`, undefined],
      [`/webhooks/${id('whk', 2)}/rotate`, { grace_s: 3_600 }],
    ]);
    await page.context().close();
  });

  test('a data source says what it holds and who uses it, and is changed but for its folder', async () => {
    const page = await openPage();
    await page.goto(`${site.url}/data`);
    const menu = () => page.getByRole('button', { name: 'Actions for qwen2.5-1.5b-instruct' }).click();
    await menu();
    await page.getByRole('menuitem', { name: 'Details' }).click();
    await page.getByRole('link', { name: 'Support assistant v3' }).waitFor();
    await page.getByText('2 more, of others').waitFor();
    await picture(page, 'source-details');
    expect(await axeFaults(page)).toEqual([]);
    await page.getByRole('button', { name: 'Measure again' }).click();
    await page.getByRole('dialog').getByText('Close', { exact: true }).click();
    await menu();
    await page.getByRole('menuitem', { name: 'Edit' }).click();
    await page.getByRole('dialog').getByLabel('Name', { exact: true }).fill('qwen');
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    expect(
      site.service.calls.find(({ method, path }) => method === 'PATCH' && path.startsWith('/data-sources/'))!.body,
    ).toEqual({ name: 'qwen', description: expect.stringContaining('Instruct weights'), visibility: 'public' });
    expect(site.service.calls.some(({ method, path }) => method === 'POST' && path.endsWith('/measurement'))).toBe(
      true,
    );
    await page.context().close();
  });

  test('each theme has its colours, whatever the system says once somebody chose', async () => {
    const page = await openPage();
    Object.assign(site.service.me, { theme: 'system' });
    const [light, dark] = ['rgb(246, 247, 247)', 'rgb(13, 19, 21)'];
    for (const [system, theme, canvas] of [
      ['light', undefined, light],
      ['dark', undefined, dark],
      ['light', 'dark', dark],
      ['dark', 'light', light],
    ] as const) {
      await page.emulateMedia({ colorScheme: system });
      await page.goto(`${site.url}/nowhere`);
      await settle(page);
      await page.evaluate(
        theme === undefined
          ? 'delete document.documentElement.dataset.theme'
          : `document.documentElement.dataset.theme = '${theme}'`,
      );
      await until(page, `getComputedStyle(document.body).backgroundColor === '${canvas}'`);
    }
    await page.context().close();
  });

  test('what has to come before anything is shown is small', () => {
    const scripts = [...readFileSync(join(site.folder, 'index.html'), 'utf8').matchAll(/"(\/assets\/[^"]+\.js)"/g)].map(
      ([, path]) => path,
    );
    expect(scripts.length).toBeGreaterThan(0);
    const numBytes = scripts.reduce(
      (sum, path) => sum + gzipSync(readFileSync(join(site.folder, path)), { level: 9 }).length,
      0,
    );
    expect(numBytes).toBeLessThan(60 * 1024);
  });

  test('the policy forbids scripts within the page', async () => {
    const page = await openPage();
    const response = await page.goto(site.url);
    expect(response?.headers()['content-security-policy']).toContain("script-src 'self'");
    expect(
      await page.evaluate(
        "const script = document.createElement('script'); script.textContent = 'window.ran = true'; document.head.append(script); window.ran === true",
      ),
    ).toBe(false);
    await page.context().close();
  });
});
