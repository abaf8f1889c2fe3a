/** Opens every page of the console in a real browser, and checks accessibility, layout and script errors. */
import { type ConsolePage, ConsoleBrowser, findBrowser, type PageOptions } from './browser';
import { id } from './fixtures';

export interface Look extends Required<PageOptions> {
  locale: 'en' | 'zh-CN';
}

/** Two pages load at the same time, so that the browser is busy while the other page waits. */
const NUM_TABS = 2;

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
  upstream: `/deployments/${id('dep', 8)}`,
  'upstream-versions': `/deployments/${id('dep', 8)}/versions`,
  'upstream-settings': `/deployments/${id('dep', 8)}/settings`,
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
  costs: '/costs',
  webhooks: '/webhooks',
  quotas: '/quotas',
  'identity-providers': '/identity-providers',
  audit: '/audit',
  account: '/account',
  'account-security': '/account/security',
  'account-keys': '/account/keys',
  'account-tokens': '/account/tokens',
  'not-found': '/nowhere',
};
/** Pages without a session. */
const OPEN_PAGES: Record<string, string> = {
  'sign-in': '/deployments',
  setup: '/bootstrap#abc',
  invitation: '/invitation#abc',
  reset: '/reset#abc',
  'sign-in-callback': '/sign-in/callback?error=access_denied&state=none',
};
const IS_OPEN_TAB_VISIBLE = `(() => {
  const open = document.querySelector('.tabs [aria-current]')?.getBoundingClientRect();
  const tabs = document.querySelector('.tabs')?.getBoundingClientRect();
  return open === undefined || (open.left >= tabs.left - 1 && open.right <= tabs.right + 1);
})()`;

/** Columns that a table cuts off, and buttons of a row that are not at its right edge. */
const TABLE_FAULTS = `[...document.querySelectorAll('.table-wrap')].flatMap((wrap) => {
  const right = wrap.getBoundingClientRect().right;
  const isWide = wrap.scrollWidth > wrap.clientWidth + 1 ? ['table is ' + wrap.scrollWidth + ' px wide'] : [];
  const buttons = [...wrap.querySelectorAll('.cell-actions .button')].map((one) => one.getBoundingClientRect().right);
  const distance = Math.round(right - Math.min(right, ...buttons));
  return distance > 160 ? [...isWide, 'buttons are ' + distance + ' px from the right edge'] : isWide;
})`;

/** What the tests check about one page. */
interface Report {
  axeFaults: string[];
  overflowPx: number;
  tableFaults: string[];
  isOpenTabVisible: boolean;
  lang: string;
  problems: string[];
  title: string;
  text: string;
}

/** Declares one test for each page in one look. Skipped if there is no Chromium. */
export function testEveryPage(look: Look): void {
  const browserPath = findBrowser();
  const inBrowser = browserPath === undefined ? describe.skip : describe;
  const { locale, theme, width } = look;
  const hint = browserPath === undefined ? ' (no Chromium found: set CHROMIUM_PATH)' : '';
  inBrowser(`pages in ${locale}, ${theme}, ${width} px wide${hint}`, () => {
    const pages = Object.entries({ ...PAGES, ...OPEN_PAGES });
    const reports = new Map<string, Promise<Report>>();
    let browser: ConsoleBrowser;
    beforeAll(async () => {
      browser = await ConsoleBrowser.start(browserPath as string);
      const tabs = await Promise.all(Array.from({ length: NUM_TABS }, () => browser.open(look)));
      for (const [tabIndex, tab] of tabs.entries()) {
        let previous: Promise<unknown> = Promise.resolve();
        for (const [name, path] of pages.filter((_, i) => i % NUM_TABS === tabIndex)) {
          const report = previous.then(() => reportOf(tab, look, name, path));
          reports.set(name, report);
          // The test of the page reports the failure. The next page is opened anyway.
          previous = report.catch(() => undefined);
        }
      }
    });
    afterAll(() => browser?.close());

    test.each(pages.map(([name]) => name))('%s', async (name) => {
      const report = (await reports.get(name)) as Report;
      expect(report.axeFaults).toEqual([]);
      expect(report.overflowPx).toBeLessThanOrEqual(0);
      expect(report.tableFaults).toEqual([]);
      expect(report.isOpenTabVisible).toBe(true);
      expect(report.lang).toBe(locale);
      expect(report.problems).toEqual([]);
      expect(report.title).not.toContain('owned');
      expect(/undefined|\[object|\{[a-z]+\}/.exec(report.text)).toBeNull();
    });
  });
}

async function reportOf(tab: ConsolePage, { locale, theme, width }: Look, name: string, path: string): Promise<Report> {
  const { page, service } = tab;
  service.isSignedIn = !(name in OPEN_PAGES);
  Object.assign(service.me, { locale, theme });
  await tab.goto(path);
  await tab.settle();
  await tab.picture(`${name}-${locale}-${theme}-${width}`);
  return {
    axeFaults: await tab.axeFaults(),
    overflowPx: await page.evaluate('document.documentElement.scrollWidth - document.documentElement.clientWidth'),
    tableFaults: await page.evaluate(TABLE_FAULTS),
    isOpenTabVisible: await page.evaluate(IS_OPEN_TAB_VISIBLE),
    lang: await page.evaluate('document.documentElement.lang'),
    problems: [...tab.problems],
    title: await page.title(),
    text: await page.locator('body').innerText(),
  };
}
