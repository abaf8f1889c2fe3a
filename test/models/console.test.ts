/** The first steps of a new user in a browser, from the setup link to a deleted key. Skipped without Chromium. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import OpenAI from 'openai';
import { type Browser, chromium, type Page } from 'playwright-core';
import type { Client } from '../../server/platform/api/client';
import { killAll } from '../fakes/server-process';
import { findBrowser } from '../server/platform/console/browser';
import {
  ADMIN,
  clientOf,
  discardAll,
  eventually,
  makeDataDir,
  type RunningService,
  startService,
  until,
} from './service-process';

const browserPath = findBrowser();
const inBrowser = browserPath === undefined ? describe.skip : describe;
/** Folder for screenshots. No screenshots are taken if it is not set. */
const pictures = process.env.CONSOLE_PICTURES;
const SECRET = /sk-cap1_[0-9A-Za-z]{12}_[0-9A-Za-z]{38}/;

inBrowser(`a new user in ${browserPath ?? 'a browser (none found: set CHROMIUM_PATH)'}`, () => {
  const { dataDir, remove } = makeDataDir();
  let service: RunningService;
  let browser: Browser;
  let page: Page;
  let client: Client | undefined;
  let url: string;
  let deploymentPage: string;
  let own: string;
  let bound: string;
  let numPictures = 0;

  beforeAll(async () => {
    service = await startService(dataDir);
    browser = await chromium.launch({ executablePath: browserPath, args: ['--no-sandbox'], timeout: 120_000 });
    page = await (
      await browser.newContext({ locale: 'en', viewport: { width: 1280, height: 900 }, reducedMotion: 'reduce' })
    ).newPage();
    page.setDefaultTimeout(120_000);
  });
  afterAll(async () => {
    await browser?.close();
    if (client !== undefined) await discardAll(client).catch(() => {});
    killAll();
    remove();
  });
  afterEach(async () => {
    if (pictures === undefined) return;
    mkdirSync(pictures, { recursive: true });
    await page.screenshot({
      path: join(pictures, `walk-${String(++numPictures).padStart(2, '0')}.png`),
      fullPage: true,
    });
  });

  const button = (name: string) => page.getByRole('button', { name, exact: true });
  const statusOf = async (key?: string): Promise<number> =>
    (await fetch(`${url}/v1/models`, key === undefined ? {} : { headers: { Authorization: `Bearer ${key}` } })).status;
  const shownSecret = async (): Promise<string> => {
    const dialog = page.getByRole('dialog');
    await dialog.getByText(SECRET).first().waitFor();
    const [secret] = SECRET.exec(await dialog.innerText())!;
    await dialog.getByRole('checkbox').check();
    await dialog.getByRole('button', { name: 'Done' }).click();
    return secret;
  };

  test('opens the printed link and creates the administrator', async () => {
    const [, link] = /(http\S+\/setup#\S+)/.exec(await service.until('/setup#'))!;
    await page.goto(link);
    await page.getByLabel('Name').fill('Ada');
    await page.getByLabel('Email').fill(ADMIN.email);
    await page.getByLabel('Password', { exact: true }).fill(ADMIN.password);
    await button('Create administrator').click();
    await page.getByRole('heading', { level: 1, name: 'Deployments' }).waitFor();
    client = await clientOf(service, dataDir);
  });

  test('creates a container with the embedded model and starts it', async () => {
    await page.goto(`${service.url}/containers/new`);
    await page.getByLabel('Name', { exact: true }).fill('lab');
    await button('Create container').click();
    await page.getByRole('heading', { level: 1, name: 'lab' }).waitFor();
    await button('Start').click();
    await page.getByText('Running').first().waitFor();
  });

  test('deploys the container, and sees it running', async () => {
    await page.getByRole('link', { name: 'Deploy', exact: true }).click();
    await page.getByLabel('Name', { exact: true }).fill('chat');
    await button('Deploy').click();
    await page.waitForURL(/\/deployments\/dep_/);
    deploymentPage = page.url();
    ({
      deployment: { url },
    } = await until(client!, /dep_\w+/.exec(deploymentPage)![0], 'running'));
    await page.getByText('Running').first().waitFor();
    await page.getByText(url).first().waitFor();
  });

  test('chats through the URL with the OpenAI client', async () => {
    const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
    expect(
      (
        await openai.chat.completions.create({
          model: 'demo',
          messages: [{ role: 'user', content: 'What is Capstan?' }],
        })
      ).choices[0].message.content,
    ).toContain('Capstan');
  });

  test('turns access control on, and gets 401 without a key', async () => {
    await page.goto(`${deploymentPage}/access`);
    await page.getByRole('switch', { name: 'Require an API key' }).click();
    await page.getByText('No key has access to this deployment').waitFor();
    expect(await statusOf()).toBe(401);
  });

  test('creates a key for this deployment, and a personal key', async () => {
    await button('Create key').click();
    await page.getByRole('dialog').getByLabel('Name').fill('ci');
    await page.getByRole('dialog').getByRole('button', { name: 'Create key' }).click();
    bound = await shownSecret();
    expect(await statusOf(bound)).toBe(200);
    await page.goto(`${service.url}/account/keys`);
    await button('Create key').click();
    await page.getByRole('dialog').getByLabel('Name').fill('laptop');
    await page.getByRole('dialog').getByRole('button', { name: 'Create key' }).click();
    own = await shownSecret();
    expect(await statusOf(own)).toBe(200);
  });

  test('refuses a key with 403 after its binding is removed', async () => {
    const other = await client!.deployments.create({ name: 'other' });
    await page.reload();
    await page.getByRole('button', { name: 'Actions for ci' }).click();
    await page.getByRole('menuitem', { name: 'Edit' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('other').check();
    await dialog.getByLabel('chat').uncheck();
    await dialog.getByRole('button', { name: 'Save' }).click();
    await dialog.waitFor({ state: 'detached' });
    expect([await statusOf(bound), await statusOf(own)]).toEqual([403, 200]);
    await client!.deployments.remove(other.id, 'other');
    // The deletion also removes the binding. Until then the page would show a stale key.
    await eventually(async () => (await client!.deployments.list()).every(({ id }) => id !== other.id));
  });

  test('refuses a deleted key with 401', async () => {
    await page.reload();
    await page.getByRole('button', { name: 'Actions for ci' }).click();
    await page.getByRole('menuitem', { name: 'Delete' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByRole('textbox').fill('ci');
    await dialog.getByRole('button', { name: 'Delete key' }).click();
    await dialog.waitFor({ state: 'detached' });
    expect(await statusOf(bound)).toBe(401);
  });

  test('opens the version and its log', async () => {
    await page.goto(`${deploymentPage}/versions/1`);
    await page.getByText('Running').first().waitFor();
    await page.goto(`${deploymentPage}/versions/1/logs`);
    await page.getByText('serves demo').first().waitFor();
  });

  test('sends a streamed request with the test tool', async () => {
    await page.goto(`${deploymentPage}/test`);
    await page.getByText('HTTP request').click();
    await button('Example: chat').click();
    await page.getByText('With a key').click();
    await page.getByLabel('API key').fill(own);
    await button('Send').click();
    await page.getByText('200').first().waitFor();
    await page.getByText('First byte').first().waitFor();
  });

  test('shows 运行中 to a user who chose Chinese', async () => {
    await page.goto(`${service.url}/account`);
    await page.evaluate(
      `(async () => {
        const session = { 'X-Session-Secret': localStorage.getItem('capstan.session') };
        const me = await (await fetch('/api/v1/me', { headers: session })).json();
        const headers = { ...session, 'Content-Type': 'application/json', 'X-CSRF-Token': me.csrf_token };
        await fetch('/api/v1/me', { method: 'PATCH', headers, body: JSON.stringify({ locale: 'zh-CN' }) });
      })()`,
    );
    await page.goto(deploymentPage);
    await page.getByText('运行中').first().waitFor();
  });
});
