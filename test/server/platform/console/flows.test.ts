/** What users do in the console, in a real browser. Skipped if there is no Chromium. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { ConsoleBrowser, findBrowser } from './browser';
import { DEPLOYMENTS, id, ME, QUOTAS } from './fixtures';
import { RECOVERY_CODES, SECRET, SESSION_SECRET } from './fake-service';

const browserPath = findBrowser();
const inBrowser = browserPath === undefined ? describe.skip : describe;

inBrowser(`the console in ${browserPath ?? 'Chromium (none found: set CHROMIUM_PATH)'}`, () => {
  let browser: ConsoleBrowser;
  beforeAll(async () => {
    browser = await ConsoleBrowser.start(browserPath as string);
  });
  afterAll(() => browser?.close());

  test('shows what to do in an empty list, and offers a retry after a failure', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    service.isEmpty = true;
    for (const [name, path] of [
      ['deployments', '/deployments'],
      ['containers', '/containers'],
      ['keys', '/account/keys'],
      ['orgs', '/orgs'],
      ['audit', '/audit'],
      ['quotas', '/quotas'],
      ['resources', '/data'],
      ['webhooks', '/webhooks'],
      ['identity-providers', '/identity-providers'],
    ]) {
      await tab.goto(path);
      await page.waitForSelector('.empty');
      await tab.picture(`empty-${name}`);
      expect(await tab.axeFaults()).toEqual([]);
    }
    service.isEmpty = false;
    service.failure = { status: 500, code: 'internal_error', detail: 'the server could not finish this request' };
    await tab.goto(`/deployments`);
    await page.waitForSelector('[role="alert"]');
    await tab.picture('error-deployments');
    service.failure = undefined;
    await page.getByRole('button', { name: 'Try again' }).click();
    await page.getByRole('link', { name: 'Support assistant' }).waitFor();
    await tab.close();
  });

  test('opens the requested page after the sign-in, and reports a wrong password', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    service.isSignedIn = false;
    await tab.goto(`/containers`);
    await page.getByLabel('Email').fill('ada@example.com');
    await page.getByLabel('Password').fill('wrong');
    await page.keyboard.press('Enter');
    await page.getByText('The email address, password or code is wrong').waitFor();
    await page.getByLabel('Password').fill('correct horse');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { level: 1, name: 'Containers' }).waitFor();
    await tab.close();
  });

  test('signs in with an identity provider, and shows its refusal', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    service.isSignedIn = false;
    await tab.goto('/containers');
    await page.getByRole('button', { name: 'Sign in with Example Corporation' }).click();
    await page.getByRole('heading', { level: 1, name: 'Containers' }).waitFor();
    expect(page.url()).toBe(`${tab.url}/containers`);
    const sent = service.calls.filter(({ path }) => path.startsWith('/auth/providers/'));
    expect(sent.map(({ body }) => body)).toEqual([
      { return_to: '/containers' },
      { code: 'the-code', state: 'the-state' },
    ]);

    // The response of a sign-in that did not begin in this tab is never sent.
    service.isSignedIn = false;
    service.calls.length = 0;
    await tab.goto('/sign-in/callback?code=stolen&state=the-state');
    await page.getByText('This has already been used or has expired').waitFor();
    expect(service.calls.filter(({ path }) => path === '/auth/providers/callback')).toEqual([]);
    expect(page.url()).toBe(`${tab.url}/sign-in/callback`);
    await page.getByRole('link', { name: 'Back to sign-in' }).click();
    await page.getByLabel('Password').waitFor();
    await tab.close();
  });

  test('adds and edits an identity provider', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto('/identity-providers');
    await page.getByRole('button', { name: 'Add identity provider' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Name', { exact: true }).fill('Second');
    await dialog.getByLabel('Client ID').fill('capstan');
    await dialog.getByLabel('Issuer').fill('https://second.example.com');
    await dialog.getByLabel('Client secret').fill('top secret');
    await dialog.getByLabel('Groups and roles').fill('no mapping');
    await dialog.getByRole('button', { name: 'Add identity provider' }).click();
    await dialog.getByText('Enter lines such as: ml-engineers').waitFor();
    await tab.picture('identity-provider-form');
    expect(await tab.axeFaults()).toEqual([]);
    await dialog.getByLabel('Groups and roles').fill('cn=ml, dc=corp = acme: admin\n\nviewers=lab:viewer');
    await dialog.getByRole('button', { name: 'Add identity provider' }).click();
    await dialog.getByText('Register this redirect URI at the provider').waitFor();
    await dialog.getByRole('button', { name: 'Close' }).last().click();
    await dialog.waitFor({ state: 'detached' });
    const posted = service.calls.find(({ method, path }) => method === 'POST' && path === '/identity-providers')!;
    expect(posted.body).toEqual({
      name: 'Second',
      issuer: 'https://second.example.com',
      client_id: 'capstan',
      client_secret: 'top secret',
      scopes: ['openid', 'profile', 'email'],
      groups_claim: 'groups',
      mappings: [
        { group: 'cn=ml, dc=corp', org: 'acme', role: 'admin' },
        { group: 'viewers', org: 'lab', role: 'viewer' },
      ],
      authorization_params: {},
      email_domains: [],
      requires_group: false,
      links_by_email: false,
      recheck_s: 3600,
    });
    await page.getByRole('button', { name: 'Actions for Example Corporation' }).click();
    await page.getByRole('menuitem', { name: 'Edit' }).click();
    await dialog.getByLabel('Confirm users every').fill('15');
    await dialog.getByRole('button', { name: 'Save' }).click();
    await dialog.waitFor({ state: 'detached' });
    const edited = service.calls.find(({ method }) => method === 'PATCH')!;
    expect(edited.body).toMatchObject({ recheck_s: 900, mappings: service.providers[0].mappings });
    expect(edited.body).not.toHaveProperty('client_secret');
    await tab.close();
  });

  test('compares a canary, and promotes it', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/deployments/${id('dep', 1)}/versions`);
    await page.getByText('3 (0.2 %)').waitFor();
    await tab.picture('canary');
    expect(await tab.axeFaults()).toEqual([]);
    await page.getByRole('button', { name: 'Promote' }).click();
    await page.getByText('Being promoted').waitFor();
    expect(service.calls.filter(({ path }) => path.endsWith('/canary/promote'))).toHaveLength(1);
    expect(await page.getByRole('button', { name: 'Roll back' }).count()).toBe(0);
    await tab.goto(`/deployments/${id('dep', 1)}/versions/new`);
    await page.getByLabel('Canary share').fill('10');
    await page.getByRole('button', { name: 'Roll out', exact: false }).last().click();
    const sent = await tab.sent('POST', '/versions');
    expect(sent.body).toMatchObject({ canary: { percent: 10 } });
    await tab.close();
  });

  test('an account of an identity provider has no password to change', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    Object.assign(service.me, { has_password: false });
    await tab.goto('/account/security');
    await page.getByText('You sign in with an identity provider').waitFor();
    expect(await page.getByLabel('Current password').count()).toBe(0);
    expect(await tab.axeFaults()).toEqual([]);
    await tab.close();
  });

  test('keeps the input of a page when the session expires', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/deployments/new`);
    await page.getByLabel('Name', { exact: true }).fill('My model');
    service.isSignedIn = false;
    await page.getByRole('button', { name: 'Deploy', exact: true }).click();
    await page.getByRole('dialog').waitFor();
    await tab.picture('session-ended');
    await page.getByRole('dialog').getByLabel('Password').fill('correct horse');
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    expect(await page.getByLabel('Name', { exact: true }).inputValue()).toBe('My model');
    await tab.close();
  });

  test('deploys a container, sends only changed fields and opens the deployment', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/containers`);
    await page.getByRole('link', { name: 'Deploy', exact: true }).first().click();
    await page.getByLabel('Memory', { exact: true }).fill('8192');
    await page.getByRole('button', { name: 'Deploy', exact: true }).click();
    await page.getByRole('heading', { level: 1, name: 'Starting up' }).waitFor();
    await page.getByRole('list', { name: 'Progress' }).waitFor();
    const sent = service.calls.find(({ method, path }) => method === 'POST' && path.endsWith('/deploy'))!;
    expect(sent.body).toMatchObject({ name: 'fine-tuning', access_control: false, compute: { memory_mb: 8192 } });
    expect(sent.body).not.toHaveProperty('env');
    expect(sent.body).not.toHaveProperty('bindings');
    await tab.close();
  });

  test('shows a new key once, until the user confirms having copied it', async () => {
    const tab = await browser.open();
    const { page } = tab;
    await tab.goto(`/account/keys`);
    await page.getByRole('button', { name: 'Create key' }).click();
    await page.getByLabel('Name', { exact: true }).fill('Phone');
    await tab.picture('key-dialog');
    expect(await tab.axeFaults()).toEqual([]);
    await page.getByRole('dialog').getByRole('button', { name: 'Create key' }).click();
    await page.getByText(SECRET).waitFor();
    await tab.picture('key-secret');
    await page.keyboard.press('Escape');
    await page.getByText(SECRET).waitFor();
    expect(await page.getByText('Applied 1/1').first().isVisible()).toBe(true);
    await page.getByLabel('I have copied it').check();
    await page.getByRole('button', { name: 'Done' }).click();
    await page.getByText(SECRET).waitFor({ state: 'detached' });
    expect(await page.content()).not.toContain(SECRET);
    await tab.close();
  });

  test('turns access control on at once, and off after a confirmation', async () => {
    const tab = await browser.open();
    const { page } = tab;
    await tab.goto(`/deployments/${id('dep', 6)}/access`);
    const access = page.getByRole('switch', { name: 'Require an API key' });
    await access.click();
    await page.getByText('No key has access to this deployment').waitFor();
    expect(await access.getAttribute('aria-checked')).toBe('true');
    await access.click();
    await page
      .getByRole('dialog', { name: 'Make this deployment public?' })
      .getByRole('button', { name: 'Make public' })
      .click();
    await page.getByText('Anyone who knows the URL').waitFor();
    await tab.close();
  });

  test('asks for the name before it deletes a deployment', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/deployments/${id('dep', 1)}`);
    await page.getByRole('button', { name: 'Actions' }).click();
    await page.getByRole('menuitem', { name: 'Delete' }).click();
    const confirm = page.getByRole('button', { name: 'Delete deployment' });
    expect(await confirm.isDisabled()).toBe(true);
    await tab.picture('delete-dialog');
    await page.getByLabel(/To confirm, type/).fill('Support assistant');
    await confirm.click();
    await page.getByRole('heading', { level: 1, name: 'Deployments' }).waitFor();
    expect(service.deployments.map(({ id: known }) => known)).not.toContain(id('dep', 1));
    await tab.close();
  });

  test('shows the URL of all deployments, and edits aliases', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/deployments/${id('dep', 1)}`);
    await page.getByRole('button', { name: 'All deployments' }).click();
    await page.getByText('curl -N http://127.0.0.1:8091/v1/chat/completions').waitFor();
    await page.getByText('"model":"Support assistant"').waitFor();
    await tab.picture('deployment-api-url');
    await tab.goto(`/deployments/${id('dep', 1)}/settings`);
    await page.getByLabel('Aliases').fill(' gpt-4o\n\nQwen/Qwen3 ');
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByText('Saved').waitFor();
    expect(service.deployments[0].aliases).toEqual(['gpt-4o', 'Qwen/Qwen3']);
    await tab.close();
  });

  test('explains a conflict with the change of another user', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/deployments/${id('dep', 1)}/settings`);
    await page.getByLabel('Name', { exact: true }).fill('Mine');
    Object.assign(service.deployments[0], { name: 'Theirs', rev: 99 });
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByText('This has changed since you opened it').waitFor();
    expect(service.deployments[0].name).toBe('Theirs');
    await tab.close();
  });

  test('shows the 401 of the gateway in the test tool, then a streamed response event by event', async () => {
    const tab = await browser.open();
    const { page } = tab;
    await tab.goto(`/deployments/${id('dep', 1)}/test`);
    await page.getByRole('button', { name: 'HTTP request' }).click();
    // A deployment that requires a key starts with one.
    await page.getByRole('button', { name: 'Without a key' }).click();
    await page.getByRole('button', { name: 'Send' }).click();
    await page.getByText('401 Unauthorized').waitFor();
    await tab.picture('test-401');
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
    await tab.picture('test-answer');
    expect(await tab.axeFaults()).toEqual([]);
    await page.getByRole('button', { name: 'Chat', exact: true }).click();
    await page.getByRole('button', { name: 'With a key' }).click();
    await page.getByRole('textbox', { name: 'Message', exact: true }).fill('Hello');
    await page.keyboard.press('Enter');
    // Without a key the message is kept, and nothing is sent.
    await page.getByText('Enter a key').waitFor();
    expect(await page.getByRole('log').getByText('Hello').count()).toBe(0);
    await page.getByLabel('API key', { exact: true }).fill(SECRET);
    await page.getByRole('textbox', { name: 'Message', exact: true }).focus();
    await page.keyboard.press('Enter');
    await page.getByText('Hello there, <b>friend</b>!').waitFor();
    await page.getByText('4 tokens').waitFor();
    await tab.picture('chat');
    await tab.close();
  });

  test('computes embeddings and sorts documents', async () => {
    const tab = await browser.open();
    const { page } = tab;
    await tab.goto(`/deployments/${id('dep', 1)}/test`);
    await page.getByRole('button', { name: 'Embeddings', exact: true }).click();
    await page.getByRole('button', { name: 'Send' }).click();
    await page.getByText('Enter at least one text').waitFor();
    await page.getByLabel('Texts').fill('<b>one</b>\n\nthree\n');
    await page.getByLabel('API key', { exact: true }).fill(SECRET);
    await page.getByRole('button', { name: 'Send' }).click();
    const vectors = page.getByRole('table', { name: 'Embeddings' }).getByRole('row');
    await vectors.nth(2).waitFor();
    expect(await vectors.nth(1).innerText()).toMatch(/^<b>one<\/b>\s+6\s+1, 10, 0\.5, -0\.25, 0, …\s+1$/);
    expect(await vectors.nth(2).innerText()).toMatch(/^three\s+6\s+1, 5, 0\.5, -0\.25, 0, …\s+0\.99\d*$/);
    await tab.picture('embeddings');
    expect(await tab.axeFaults()).toEqual([]);
    await page.getByRole('button', { name: 'Reranking', exact: true }).click();
    await page.getByLabel('Query').fill('which?');
    await page.getByLabel('Documents').fill('first\nsecond');
    await page.getByLabel('API key', { exact: true }).fill(SECRET);
    await page.getByRole('button', { name: 'Send' }).click();
    const documents = page.getByRole('table', { name: 'Reranking' }).getByRole('row');
    await documents.nth(2).waitFor();
    expect(await documents.nth(1).innerText()).toMatch(/^second\s+1$/);
    expect(await documents.nth(2).innerText()).toMatch(/^first\s+0\.5$/);
    expect(await tab.axeFaults()).toEqual([]);
    await page.getByRole('button', { name: 'Without a key' }).click();
    await page.getByRole('button', { name: 'Send' }).click();
    await page.getByText('The request failed').waitFor();
    await tab.close();
  });

  test('follows and searches a log, and shows untrusted lines as text', async () => {
    const tab = await browser.open();
    const { page } = tab;
    await tab.goto(`/deployments/${id('dep', 1)}/versions/3/logs`);
    await page.getByText('a line that came later').waitFor();
    const log = page.getByRole('region', { name: 'Logs' });
    // The first lines are added to the document when the view reaches them.
    await log.focus();
    await page.keyboard.press('Home');
    await page.getByText('<img src=x onerror').waitFor();
    expect(await page.locator('.log img').count()).toBe(0);
    expect(await page.locator('.log').innerText()).toContain('<U+202E>evil');
    await page.getByRole('button', { name: 'Go to newest' }).click();
    await page.getByText('a line that came later').waitFor();
    await page.getByRole('button', { name: 'Go to newest' }).waitFor({ state: 'detached' });
    await page.getByRole('searchbox', { name: 'Search the log' }).fill('context LENGTH');
    await page.locator('.log mark').first().waitFor();
    await tab.until(
      "[...document.querySelectorAll('.log-line')].every((line) => line.textContent.includes('context length'))",
    );
    await page.getByRole('searchbox', { name: 'Search the log' }).fill('');
    await page.getByText('61 lines').waitFor();
    await page.getByRole('combobox', { name: 'Level' }).selectOption('Warnings and above');
    await tab.until(
      "[...document.querySelectorAll('.log-line')].every((line) => line.dataset.level === 'warn' || line.textContent.includes('came later'))",
    );
    await tab.close();
  });

  test('loads older log lines without moving the visible ones', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    service.hasOlderLines = true;
    await tab.goto(`/deployments/${id('dep', 1)}/versions/3/logs`);
    const log = page.getByRole('region', { name: 'Logs' });
    await page.getByText('a line that came later').waitFor();
    await log.focus();
    await page.keyboard.press('Home');
    // The browser scrolls smoothly.
    await tab.until("document.querySelector('.log-lines').scrollTop === 0");
    const first = page.getByText('replica 0 started on L2');
    await first.waitFor();
    const offset = async () => (await first.boundingBox())!.y - (await log.boundingBox())!.y;
    const before = await offset();
    await page.getByRole('button', { name: 'Load older lines' }).click();
    await page.getByText('121 lines').waitFor();
    await page.getByText('older 60', { exact: true }).waitFor();
    expect(Math.abs((await offset()) - before)).toBeLessThan(2);
    await tab.close();
  });

  test('selects all lines of a log for copying, also those outside the view', async () => {
    const tab = await browser.open();
    const { page } = tab;
    await tab.goto(`/deployments/${id('dep', 1)}/versions/3/logs`);
    await page.getByText('a line that came later').waitFor();
    expect(await page.getByText('replica 0 started on L2').count()).toBe(0);
    await page.getByRole('region', { name: 'Logs' }).focus();
    await page.keyboard.press('ControlOrMeta+a');
    await tab.until("document.getSelection().toString().includes('replica 0 started on L2')");
    expect(await page.evaluate('document.getSelection().toString()')).toContain('a line that came later');
    await tab.close();
  });

  test('reads plot values by keyboard', async () => {
    const tab = await browser.open();
    const { page } = tab;
    await tab.goto(`/deployments/${id('dep', 1)}/metrics`);
    await tab.settle();
    await page.getByRole('group', { name: /^Latency/ }).focus();
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('ArrowRight');
    await page.getByText(/12:01:00: p50 .* ms, p90 .* ms, p99 .* s$/).waitFor();
    expect(tab.problems).toEqual([]);
    await tab.close();
  });

  test('deploys, changes and restores a server elsewhere', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    const sent = (method: string) => service.calls.filter((call) => call.method === method).at(-1)!;
    await tab.goto('/deployments/new');
    await page.getByLabel('Name', { exact: true }).fill('cloud');
    await page.getByRole('radio', { name: /Elsewhere/ }).check();
    await page.getByRole('button', { name: 'Deploy', exact: true }).click();
    await page.getByText('Enter a URL that begins with https:// or http://').waitFor();
    await page.getByLabel('Base URL').fill('https://api.example.com/v1');
    await page.getByLabel('Key for that server').fill('sk-provider');
    await page.getByRole('checkbox', { name: /Messages/ }).check();
    await page.getByRole('checkbox', { name: /Chat completions/ }).uncheck();
    await tab.picture('deploy-upstream');
    expect(await tab.axeFaults()).toEqual([]);
    await page.getByRole('button', { name: 'Deploy', exact: true }).click();
    await page.getByRole('heading', { level: 1, name: 'Starting up' }).waitFor();
    expect(sent('POST').body).toMatchObject({
      name: 'cloud',
      access_control: true,
      upstream: { url: 'https://api.example.com/v1', secret: 'sk-provider', model: null, interfaces: ['messages'] },
    });
    expect(sent('POST').body.compute).toBeUndefined();

    await tab.goto(`/deployments/${id('dep', 8)}/settings`);
    await page.getByText('A key is stored. Leave this empty to keep it.').waitFor();
    await page.getByLabel('Model', { exact: false }).first().fill('larger');
    await page.getByRole('button', { name: 'Save upstream' }).click();
    await page.getByText('Saved').first().waitFor();
    expect(sent('PATCH').body).toEqual({
      upstream: { url: 'https://api.example.com/v1', model: 'larger', interfaces: ['chat', 'responses'] },
    });

    await tab.goto(`/deployments/${id('dep', 8)}/versions`);
    await page.getByRole('button', { name: 'Restore version 1' }).click();
    await page.getByText('Saved').first().waitFor();
    expect(sent('PATCH').body).toEqual({ upstream: { version: 1 } });
    expect(tab.problems).toEqual([]);
    await tab.close();
  });

  test('edits a start script in the code editor', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto('/deployments/new');
    await page.getByLabel('Name', { exact: true }).fill('Own server');
    await page.getByRole('radio', { name: /Start script/ }).check();
    await tab.settle();
    const script = page.getByLabel('Script', { exact: true });
    expect(await script.getAttribute('aria-description')).toContain('PLATFORM_SERVING_PRODUCTION');
    await page.getByRole('button', { name: 'Deploy', exact: true }).click();
    await page.getByText('This field is required').waitFor();
    await tab.until("document.querySelector('.code-editor').shadowRoot.querySelector('[aria-invalid=true]') !== null");
    await page.getByText('Script', { exact: true }).click();
    await page.keyboard.type('#!/bin/sh');
    await page.keyboard.press('Enter');
    await page.keyboard.type('exec my-server');
    await tab.picture('code-editor');
    await page.keyboard.press('ControlOrMeta+f');
    await page.getByRole('textbox', { name: 'Find' }).fill('exec');
    await tab.picture('code-editor-search');
    expect(await tab.axeFaults()).toEqual([]);
    expect(tab.problems).toEqual([]);
    await page.getByRole('button', { name: 'Deploy', exact: true }).click();
    await page.getByRole('heading', { level: 1, name: 'Starting up' }).waitFor();
    const sent = service.calls.find(({ method, path }) => method === 'POST' && path === '/deployments')!;
    expect(sent.body.start_command).toBe('#!/bin/sh\nexec my-server');
    await tab.close();
  });

  test('keeps a plain text area if the code editor fails to load', async () => {
    const tab = await browser.open();
    const { page } = tab;
    await page.route('**/code-editor-*.js', (route) => route.abort());
    await tab.goto(`/deployments/${id('dep', 1)}/test`);
    await page.getByRole('button', { name: 'HTTP request' }).click();
    await page.getByLabel('Body', { exact: true }).fill('{');
    await page.getByRole('button', { name: 'Send' }).click();
    await page.getByText('This is not valid JSON').waitFor();
    expect(await page.getByLabel('Body', { exact: true }).getAttribute('aria-invalid')).toBe('true');
    expect(await page.getByLabel('Body', { exact: true }).inputValue()).toBe('{');
    await tab.close();
  });

  test('grants and removes the administrator role', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/quotas`);
    const grace = page.getByRole('row', { name: /grace/ });
    await grace.waitFor();
    expect(await page.getByRole('row', { name: /ada@/ }).getByText('Administrator', { exact: true }).count()).toBe(1);
    const choose = async (name: string) => {
      await grace.getByRole('button', { name: 'Actions for grace@example.com' }).click();
      await page.getByRole('menuitem', { name }).click();
    };
    await choose('Make administrator');
    expect(await tab.axeFaults()).toEqual([]);
    await tab.picture('quota-role');
    await page.getByRole('dialog').getByRole('button', { name: 'Make administrator' }).click();
    await grace.getByText('Administrator', { exact: true }).waitFor();
    await choose('Remove administrator role');
    await page.getByRole('dialog').getByRole('button', { name: 'Remove administrator role' }).click();
    await grace.getByText('Administrator', { exact: true }).waitFor({ state: 'detached' });
    expect(service.calls.filter(({ method }) => method === 'PUT').map(({ path, body }) => [path, body])).toEqual(
      [true, false].map((enabled) => [`/users/${QUOTAS[2].owner.id}/administrator`, { enabled }]),
    );
    await tab.close();
  });

  test('keeps the secret of the session in the storage of its origin, and sends it with every request', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    service.isSignedIn = false;
    await tab.goto(`/account/security`);
    await page.getByLabel('Email').fill('ada@example.com');
    await page.getByLabel('Password').fill('correct horse');
    await page.keyboard.press('Enter');
    await page.getByText('Each session also needs a secret').waitFor();
    await tab.picture('session-guard');
    const since = async (act: () => Promise<unknown>) => {
      service.calls.length = 0;
      await act();
      return new Set(service.calls.map(({ secret }) => secret));
    };
    // After a reload, for streams and for downloads.
    const { id: deploymentId } = DEPLOYMENTS[0];
    const sent = await since(async () => {
      await tab.goto(`/deployments/${deploymentId}/versions/1/logs`);
      const saved = page.waitForEvent('download');
      await page.getByRole('button', { name: 'Download' }).click();
      const file = await saved;
      expect(file.suggestedFilename()).toBe(`${deploymentId}-v1.log.gz`);
      expect(readFileSync(await file.path(), 'utf8')).toBe('all lines\n');
    });
    expect([...sent]).toEqual([SESSION_SECRET]);
    expect(service.calls.some(({ path }) => path.endsWith('/logs/follow'))).toBe(true);
    expect(await page.evaluate('document.cookie')).toBe('');
    await page.getByRole('button', { name: 'Account menu' }).or(page.locator('.account-button')).first().click();
    // A live log that scrolls does not close the menu.
    await page.evaluate(`document.querySelector('.log-lines').dispatchEvent(new Event('scroll'))`);
    await page.getByRole('menuitem', { name: 'Sign out' }).click();
    await page.getByLabel('Email').waitFor();
    expect(await page.evaluate(`localStorage.getItem('capstan.session')`)).toBeNull();
    service.me = { ...service.me, session_guard: 'own-host' };
    service.isSignedIn = true;
    await tab.goto(`/account/security`);
    await page.getByText('Only the console uses this host name').waitFor();
    await tab.close();
  });

  test('turns the second factor on, and shows the recovery codes once', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/account/security`);
    await page.getByRole('button', { name: 'Turn on' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Current password').fill('correct horse');
    await page.keyboard.press('Enter');
    await dialog.getByLabel('Code', { exact: true }).fill('123456');
    await page.keyboard.press('Enter');
    await dialog.getByText(RECOVERY_CODES[9]).waitFor();
    expect(await tab.axeFaults()).toEqual([]);
    await tab.picture('recovery-codes');
    const close = dialog.getByRole('button', { name: 'Done' });
    expect(await close.isDisabled()).toBe(true);
    await dialog.getByRole('checkbox').check();
    await close.click();
    await page.getByText('10 recovery codes left').waitFor();
    expect(await page.getByText(RECOVERY_CODES[9]).count()).toBe(0);
    Object.assign(service.me, { recovery_codes_left: 1 });
    await tab.goto(`/account/security`);
    await page.getByText('1 recovery code left').waitFor();
    expect(await tab.axeFaults()).toEqual([]);
    await tab.picture('recovery-left');
    await page.getByRole('button', { name: 'Create new recovery codes' }).click();
    await dialog.getByLabel('Current password').fill('correct horse');
    await page.keyboard.press('Enter');
    await dialog.getByText(RECOVERY_CODES[0]).waitFor();
    await dialog.getByRole('checkbox').check();
    await close.click();
    await page.getByRole('button', { name: 'Turn off' }).click();
    await dialog.getByLabel('Current password').fill('correct horse');
    await page.keyboard.press('Enter');
    await page.getByRole('button', { name: 'Turn on' }).waitFor();
    await tab.close();
  });

  test('makes a link to reset a password, which sets a new one', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/quotas`);
    await page.getByRole('button', { name: 'Actions for grace@example.com' }).click();
    expect(await tab.axeFaults()).toEqual([]);
    await tab.picture('quotas-menu');
    await page.getByRole('menuitem', { name: 'Reset password' }).click();
    await page.getByRole('button', { name: 'Create link' }).click();
    await page.getByText(`${tab.url}/reset#abc`).waitFor();
    expect(await tab.axeFaults()).toEqual([]);
    await tab.picture('reset-link');
    service.isSignedIn = false;
    await tab.goto(`/reset#abc`);
    await page.getByLabel('New password').fill('short');
    await page.getByRole('button', { name: 'Set password' }).click();
    await page.getByText('Enter at least 10 characters').waitFor();
    await page.getByLabel('New password').fill('correct horse');
    await page.getByRole('button', { name: 'Set password' }).click();
    await page.getByText('The password is changed').waitFor();
    expect(await page.evaluate('location.hash')).toBe('');
    expect(service.calls.at(-1)).toMatchObject({
      path: '/auth/password-reset',
      body: { token: 'abc', password: 'correct horse' },
    });
    await page.getByRole('link', { name: 'Sign in' }).click();
    await page.getByLabel('Email').waitFor();
    await tab.goto(`/reset#used`);
    await page.getByLabel('New password').fill('correct horse');
    await page.getByRole('button', { name: 'Set password' }).click();
    await page.getByRole('alert').waitFor();
    await tab.picture('reset-used');
    await tab.close();
  });

  test('changes quotas, and deletes an account after its email address is typed', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/quotas`);
    const acme = page.getByRole('row', { name: /acme/ });
    const choose = async (owner: string, name: string) => {
      await page.getByRole('button', { name: `Actions for ${owner}` }).click();
      await page.getByRole('menuitem', { name }).click();
    };
    // The current quotas arrive while the user types.
    let answer!: () => void;
    const typed = new Promise<void>((resolve) => (answer = resolve));
    await page.route(/\/quotas\/[^/]+$/, (route) => typed.then(() => route.continue()));
    await choose('acme', 'Change quotas');
    await page.getByLabel('Maximum GPUs').fill('x');
    const answered = page.waitForResponse(/\/quotas\/[^/]+$/);
    answer();
    await answered;
    await page.getByText('Enter a number').waitFor();
    expect(await page.getByLabel('Maximum GPUs').inputValue()).toBe('x');
    await page.getByLabel('Maximum GPUs').fill('8');
    await page.getByLabel('Maximum deployments').fill('');
    expect(await page.getByLabel('Maximum CPU cores').inputValue()).toBe('32');
    await page.getByLabel('Maximum CPU cores').fill('0.5');
    await page.getByLabel('Maximum disk').fill('1.5');
    await page.getByText('Enter a number').waitFor();
    await page.getByLabel('Maximum disk').fill('102400');
    expect(await tab.axeFaults()).toEqual([]);
    await tab.picture('quota-dialog');
    await page.getByRole('button', { name: 'Save' }).click();
    await acme.getByText('of 8').waitFor();
    expect(await acme.getByRole('cell').nth(2).innerText()).toMatch(/^4\s+no limit$/);
    expect(await acme.getByRole('cell').nth(5).innerText()).toMatch(/^2\.5\s+of 0\.5$/);
    expect(await acme.getByRole('cell').nth(7).innerText()).toMatch(/^50\.1 GiB\s+of 100 GiB$/);
    expect(service.calls.find(({ method }) => method === 'PATCH')?.body).toEqual({
      quota_deployments: null,
      quota_versions: null,
      quota_gpu: 8,
      quota_cpu_millis: 500,
      quota_memory_mb: 262_144,
      quota_disk_mb: 102_400,
    });
    await page.getByRole('button', { name: `Actions for ${ME.email}` }).click();
    expect(await page.getByRole('menuitem').allInnerTexts()).toEqual(['Change quotas']);
    await page.keyboard.press('Escape');
    await choose('grace@example.com', 'Delete account');
    const confirm = page.getByRole('button', { name: 'Delete account', exact: true });
    expect(await confirm.isDisabled()).toBe(true);
    await page.getByRole('dialog').getByRole('textbox').fill('grace@example.com');
    await confirm.click();
    await page.getByRole('row', { name: /grace/ }).waitFor({ state: 'detached' });
    Object.assign(service.me, { is_admin: false });
    await tab.goto(`/quotas`);
    await page.getByRole('heading', { level: 1 }).waitFor();
    expect(await page.getByRole('link', { name: 'Accounts and quotas' }).count()).toBe(0);
    expect(await page.getByRole('table').count()).toBe(0);
    await tab.close();
  });

  test('changes the email address and deletes the account with the password', async () => {
    const tab = await browser.open();
    const { page } = tab;
    await tab.goto(`/account`);
    await page.getByLabel('New email').fill('countess@example.com');
    await page.getByLabel('Current password').fill('wrong');
    await page.getByRole('button', { name: 'Change email' }).click();
    await page.getByText('The email address, password or code is wrong').waitFor();
    await page.getByLabel('Current password').fill('correct horse');
    await page.getByRole('button', { name: 'Change email' }).click();
    await page.getByText('You sign in with countess@example.com').waitFor();
    await tab.goto(`/account/security`);
    await page.getByRole('button', { name: 'Delete account' }).click();
    await page.getByRole('dialog').getByLabel('Current password').fill('correct horse');
    await tab.picture('account-end');
    await page.getByRole('dialog').getByRole('button', { name: 'Delete account' }).click();
    await page.getByRole('heading', { level: 1, name: 'Sign in' }).waitFor();
    await tab.close();
  });

  test('reaches every control by keyboard, with a visible focus', async () => {
    const tab = await browser.open();
    const { page } = tab;
    await tab.goto(`/deployments`);
    await page.getByRole('link', { name: 'Support assistant' }).waitFor();
    await page.keyboard.press('Tab');
    expect(await page.evaluate('document.activeElement?.textContent')).toBe('Skip to content');
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
    await tab.close();
  });

  test('creates a webhook, shows its secret once, sends a test and rotates the secret', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/webhooks`);
    await page.getByRole('button', { name: 'Create webhook' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('URL').fill('https://hooks.example.com/');
    await dialog.getByLabel('API keys').check();
    await dialog.getByLabel('Individual events').fill('version.error');
    await tab.picture('webhook-dialog');
    expect(await tab.axeFaults()).toEqual([]);
    await dialog.getByRole('button', { name: 'Create webhook' }).click();
    await page.getByText('whsec_AAAA').waitFor();
    const sent = service.calls.find(({ method, path }) => method === 'POST' && path === '/webhooks')!;
    expect(sent.body).toEqual({
      url: 'https://hooks.example.com/',
      events: ['deployment.*', 'key.*', 'version.error'],
      owner: { type: 'user', id: ME.id },
    });
    await page.getByLabel('I have copied it').check();
    await page.getByRole('button', { name: 'Done' }).click();
    await page.getByRole('button', { name: 'Actions for https://hooks.example.com/capstan' }).click();
    await page.getByRole('menuitem', { name: 'Send test' }).click();
    await page.getByText('Delivered: 204 after 12 ms').waitFor();
    await page.getByRole('button', { name: 'Actions for https://hooks.example.com/capstan' }).click();
    await page.getByRole('menuitem', { name: 'Deliveries' }).click();
    await page.getByText('status 500 · 31 ms').waitFor();
    await tab.picture('webhook-deliveries');
    expect(await tab.axeFaults()).toEqual([]);
    // Pending messages are retried anyway, and a test has no event to send again.
    expect(await page.getByRole('button', { name: /^Send again/ }).count()).toBe(1);
    await page.getByRole('button', { name: 'Send again: deployment.failed' }).click();
    await page.getByText('The message will be sent again').waitFor();
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: 'Actions for https://hooks.example.com/capstan' }).click();
    await page.getByRole('menuitem', { name: 'Revoke the old secret now' }).click();
    await page.getByRole('button', { name: 'Actions for https://elsewhere.example.com/in' }).click();
    await page.getByRole('menuitem', { name: 'Rotate secret' }).click();
    await page.getByRole('dialog').getByLabel('Grace period of the old secret').selectOption('1 hour');
    expect(await tab.axeFaults()).toEqual([]);
    await tab.picture('webhook-rotate');
    await page.getByRole('dialog').getByRole('button', { name: 'Rotate', exact: true }).click();
    await page.getByText('whsec_BBBB').waitFor();
    const asked = service.calls
      .filter(({ path }) => /\/webhooks\/.*\/(redeliver|rotate)/.test(path))
      .map(({ path, body }) => [path, body]);
    expect(asked).toEqual([
      [`/webhooks/${id('whk', 1)}/deliveries/${id('whd', 3)}/redeliver`, undefined],
      [`/webhooks/${id('whk', 1)}/rotate/finish`, undefined],
      [`/webhooks/${id('whk', 2)}/rotate`, { grace_s: 3_600 }],
    ]);
    await tab.close();
  });

  test('shows the details and uses of a data source, and edits it without its folder', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto(`/data`);
    const menu = () => page.getByRole('button', { name: 'Actions for qwen2.5-1.5b-instruct' }).click();
    await menu();
    await page.getByRole('menuitem', { name: 'Details' }).click();
    await page.getByRole('link', { name: 'Support assistant v3' }).waitFor();
    await page.getByText('2 more by other owners').waitFor();
    await tab.picture('source-details');
    expect(await tab.axeFaults()).toEqual([]);
    await page.getByRole('button', { name: 'Measure again' }).click();
    await page.getByRole('dialog').getByText('Close', { exact: true }).click();
    await menu();
    await page.getByRole('menuitem', { name: 'Edit' }).click();
    await page.getByRole('dialog').getByLabel('Name', { exact: true }).fill('qwen');
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    expect(
      service.calls.find(({ method, path }) => method === 'PATCH' && path.startsWith('/data-sources/'))!.body,
    ).toEqual({ name: 'qwen', description: expect.stringContaining('Instruct weights'), visibility: 'public' });
    expect(service.calls.some(({ method, path }) => method === 'POST' && path.endsWith('/measurement'))).toBe(true);
    await tab.close();
  });

  test('pulls a model from the hub after a check of its size', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto('/data');
    await page.getByRole('progressbar', { name: 'Download progress' }).first().waitFor();
    await page.getByText('1 GiB of 2.3 GiB · 45 MiB per second').waitFor();
    await tab.picture('pulls');
    expect(await tab.axeFaults()).toEqual([]);
    await page.getByRole('button', { name: 'Pull from the hub' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Model', { exact: true }).fill('Qwen/Qwen3-4B-GGUF:Q8_0');
    await dialog.getByLabel('Hub token').fill('hf_secret');
    await dialog.getByRole('button', { name: 'Check whether it fits' }).click();
    await dialog.getByText('The model fits only if other programs end').waitFor();
    await dialog.getByText('This would fit: Q4_K_M').waitFor();
    await tab.picture('pull-dialog');
    expect(await tab.axeFaults()).toEqual([]);
    await dialog.getByRole('button', { name: /^Q4_K_M/ }).click();
    expect(await dialog.getByLabel('Quantization or file').inputValue()).toBe('Q4_K_M');
    await dialog.getByRole('button', { name: 'Pull from the hub' }).click();
    await dialog.waitFor({ state: 'detached' });
    const bodyOf = (path: string) => service.calls.find((call) => call.path === path)!.body;
    expect(bodyOf('/data-pulls/preview')).toEqual({
      model: 'Qwen/Qwen3-4B-GGUF:Q8_0',
      hub: 'huggingface',
      token: 'hf_secret',
    });
    expect(bodyOf('/data-pulls')).toMatchObject({ model: 'Qwen/Qwen3-4B-GGUF:Q4_K_M', token: 'hf_secret' });
    await tab.close();
  });

  test('deploys a model from the hub with a quantization', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto('/deployments/new');
    await page.getByLabel('Name', { exact: true }).fill('small');
    await page.getByLabel('Model', { exact: true }).fill('Qwen/Qwen3-4B@main:Q4_K_M');
    await page.getByText('The service downloads it before the first start').waitFor();
    await page.getByLabel('Hub', { exact: true }).selectOption('ModelScope');
    await page.getByLabel('Quantization at load').selectOption('int8');
    await page.getByText('More runtime options').click();
    await page.getByLabel('Maximum running sequences').fill('8');
    await page.getByLabel('Chat template').fill('a file');
    await tab.picture('deploy-hub');
    expect(await tab.axeFaults()).toEqual([]);
    await page.getByRole('button', { name: 'Deploy' }).click();
    await page.getByText('Enter the text of a Jinja template').waitFor();
    await page.getByLabel('Chat template').fill('{{ messages }}');
    await page.getByRole('button', { name: 'Deploy' }).click();
    await tab.until("location.pathname.startsWith('/deployments/dep_')");
    expect(service.calls.find(({ method, path }) => method === 'POST' && path === '/deployments')!.body).toMatchObject({
      runtime: {
        model: 'Qwen/Qwen3-4B@main:Q4_K_M',
        hub: 'modelscope',
        quantization: 'int8',
        max_num_seqs: 8,
        chat_template: '{{ messages }}',
        dtype: null,
      },
    });
    await tab.close();
  });

  test('shows why a download failed, pulls it again, and cancels a running one', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    await tab.goto('/data');
    await page.getByRole('button', { name: 'Actions for llama' }).click();
    await page.getByRole('menuitem', { name: 'Details' }).click();
    await page.getByText('Request access on the page of the model, then pull again').waitFor();
    await tab.picture('pull-failed');
    expect(await tab.axeFaults()).toEqual([]);
    await page.getByRole('dialog').getByText('Close', { exact: true }).click();
    await page.getByRole('button', { name: 'Actions for llama' }).click();
    await page.getByRole('menuitem', { name: 'Pull again' }).click();
    await page.getByText('Leave it empty to keep the stored token.').waitFor();
    await page.getByRole('dialog').getByRole('button', { name: 'Pull again' }).click();
    await page.getByRole('dialog').waitFor({ state: 'detached' });
    await page.getByRole('button', { name: 'Actions for Qwen/Qwen3-4B-GGUF:Q4_K_M' }).click();
    await page.getByRole('menuitem', { name: 'Details' }).click();
    await page.getByRole('button', { name: 'Cancel the download' }).click();
    await page.getByRole('dialog').getByText('Download cancelled').waitFor();
    expect(
      service.calls.filter(({ path }) => path.endsWith('/pull')).map(({ method, body }) => [method, body]),
    ).toEqual([
      ['POST', { model: 'meta-llama/Llama-3.2-1B', hub: 'huggingface' }],
      ['DELETE', undefined],
    ]);
    await tab.close();
  });

  test('applies the chosen theme over the theme of the system', async () => {
    const tab = await browser.open();
    const { page, service } = tab;
    Object.assign(service.me, { theme: 'system' });
    const [light, dark] = ['rgb(246, 247, 247)', 'rgb(13, 19, 21)'];
    for (const [system, theme, canvas] of [
      ['light', undefined, light],
      ['dark', undefined, dark],
      ['light', 'dark', dark],
      ['dark', 'light', light],
    ] as const) {
      await page.emulateMedia({ colorScheme: system });
      await tab.goto(`/nowhere`);
      await tab.settle();
      await page.evaluate(
        theme === undefined
          ? 'delete document.documentElement.dataset.theme'
          : `document.documentElement.dataset.theme = '${theme}'`,
      );
      await tab.until(`getComputedStyle(document.body).backgroundColor === '${canvas}'`);
    }
    await tab.close();
  });

  test('keeps the scripts of the first page under 60 KiB', () => {
    const scripts = [
      ...readFileSync(join(browser.folder, 'index.html'), 'utf8').matchAll(/"(\/assets\/[^"]+\.js)"/g),
    ].map(([, path]) => path);
    expect(scripts.length).toBeGreaterThan(0);
    const numBytes = scripts.reduce(
      (sum, path) => sum + gzipSync(readFileSync(join(browser.folder, path)), { level: 9 }).length,
      0,
    );
    expect(numBytes).toBeLessThan(60 * 1024);
  });

  test('refuses inline scripts', async () => {
    const tab = await browser.open();
    const { page } = tab;
    const response = await tab.goto('/');
    expect(response?.headers()['content-security-policy']).toContain("script-src 'self'");
    expect(
      await page.evaluate(
        "const script = document.createElement('script'); script.textContent = 'window.ran = true'; document.head.append(script); window.ran === true",
      ),
    ).toBe(false);
    await tab.close();
  });
});
