import { startService, type TestService } from './support';

let service: TestService;
beforeAll(async () => {
  service = await startService();
  await service.run(['orgs', 'create', 'lab']);
});
afterAll(async () => {
  await service.close();
});

test('prices are set, listed and deleted', async () => {
  const set = ['prices', 'set', 'chat', '--input', '0.15', '--cached-input', '0.075', '--output', '0.6'];
  expect(await service.run(set)).toMatchObject({ code: 0, out: 'set the price of chat\n' });
  expect((await service.run(['prices', 'currency', 'EUR'])).out).toBe('prices and budgets are in EUR\n');
  expect((await service.run(['prices', 'list'])).out).toMatch(
    /^MODEL +INPUT +CACHED +OUTPUT +MAX OUTPUT +CURRENCY\nchat +0\.15 +0\.075 +0\.6 +16384 +EUR\n$/,
  );
  expect(await service.run(['prices', 'delete', 'chat'])).toMatchObject({ code: 2 });
  expect(await service.run(['prices', 'delete', 'chat', '--yes'])).toMatchObject({ code: 0 });
  expect(await service.run(['prices', 'delete', 'chat', '--yes'])).toMatchObject({ err: 'chat has no price' });
});

test('budgets are created, changed and deleted', async () => {
  const created = await service.run(['budgets', 'create', '500', '--per', 'month', '--owner', 'org:lab', '--json']);
  const { id } = JSON.parse(created.out) as { id: string };
  expect((await service.run(['budgets', 'list'])).out).toMatch(
    /^FOR +AMOUNT +PER +SPENT +RESERVED +RESETS +ID\norg:lab +500 EUR +month +0 +0 +\S.* bud_\S+\n$/,
  );
  expect((await service.run(['budgets', 'edit', id, '--amount', '7.5', '--alert', '10', '20'])).out).toBe(
    `changed ${id}: 7.5 EUR, 0 spent\n`,
  );
  expect(await service.run(['budgets', 'delete', id, '--yes'])).toMatchObject({ code: 0, out: `deleted ${id}\n` });
});

test.each<[string[], string]>([
  [['budgets', 'create', '5', '--per', 'month'], 'expected either --key or --owner'],
  [
    ['budgets', 'create', '5', '--per', 'year', '--owner', 'org:lab'],
    "--per: expected day, month or total, got 'year'",
  ],
  [['budgets', 'create', '5', '--per', 'day', '--owner', 'lab'], "--owner: expected user:EMAIL or org:SLUG, got 'lab'"],
  [['budgets', 'edit', 'bud_1'], 'nothing to change: expected --amount or --alert'],
  [['budgets', 'edit', 'bud_1', '--alert', 'x'], "--alert: expected a percentage from 1 to 100, got 'x'"],
  [['spend', '--by', 'hour'], "--by: expected day, owner, key or model, got 'hour'"],
])('refuses %j with the expected value', async (line, message) => {
  expect(await service.run(line)).toMatchObject({ code: 2, err: expect.stringContaining(message) });
});

test('costs are shown by what they are grouped by, and as CSV', async () => {
  const { out } = await service.run(['spend', '--by', 'model', '--from', '2030-01-01', '--to', '2030-01-31']);
  expect(out).toBe('MODEL  REQUESTS  TOKENS  EUR\ntotal from 2030-01-01 to 2030-01-31: 0 EUR\n');
  expect((await service.run(['spend', '--csv', '--owner', 'user'])).out).toMatch(/^day,owner_type,.*,currency\r\n$/);
});
