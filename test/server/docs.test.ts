/** docs/api.md and the flags of all pages against the code. CAPSTAN_WRITE_DOCS=1 writes the tables. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { addKeysCommand } from '../../server/access/cli';
import { App } from '../../server/app';
import { addServiceCommands } from '../../server/commands';
import { ERROR_KINDS } from '../../server/errors';
import { SERVE_FLAGS } from '../../server/flags';
import { Metrics } from '../../server/metrics/metrics';
import { openApiDocument } from '../../server/openapi/document';
import { openApiRoute } from '../../server/openapi/route';
import { UP_FLAGS } from '../../server/up/flags';

const docs = join(__dirname, '../../docs');

function describe(): any {
  const app: App = new App({
    servedNames: [],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 1000, slowClientTimeoutMs: 1000 },
    log: {} as never,
    routes: [new Metrics({ compat: 'none' }).route, openApiRoute(() => app.routes, false)],
  });
  return openApiDocument(app.routes, { version: '1', hasAccess: true });
}

function routesTable(): string {
  const rows = Object.entries<any>(describe().paths).flatMap(([path, operations]) =>
    Object.entries<any>(operations).map(([method, operation]) => ({
      name: `${method.toUpperCase()} ${path}`,
      ...operation,
    })),
  );
  const served = rows
    .filter(({ tags }) => tags.includes('implemented'))
    .map(({ name, summary }) => `| \`${name}\` | ${summary} |`);
  const others = rows.filter(({ tags }) => !tags.includes('implemented')).map(({ name }) => `\`${name}\``);
  return ['| route | what it does |', '|---|---|', ...served, `| ${others.join(', ')} | 501 |`].join('\n');
}

function errorsTable(): string {
  const codes = Object.entries(ERROR_KINDS);
  const statuses = [...new Set(codes.map(([, { status }]) => status))].sort((a, b) => a - b);
  return [
    '| status | codes |',
    '|---|---|',
    ...statuses.map(
      (status) =>
        `| ${status} | ${codes
          .filter(([, kind]) => kind.status === status)
          .map(([code]) => `\`${code}\``)
          .join(', ')} |`,
    ),
  ].join('\n');
}

test('the tables of docs/api.md are those of the code', () => {
  const path = join(docs, 'api.md');
  const text = readFileSync(path, 'utf8');
  const fresh = Object.entries({ routes: routesTable(), errors: errorsTable() }).reduce((page, [name, table]) => {
    expect(page).toContain(`<!-- ${name} -->\n`);
    return page.replace(
      new RegExp(`(<!-- ${name} -->\n)[^]*?(\n<!-- end -->)`),
      (_all, begin: string, end: string) => begin + table + end,
    );
  }, text);
  if (process.env.CAPSTAN_WRITE_DOCS === '1') writeFileSync(path, fresh);
  expect(readFileSync(path, 'utf8')).toBe(fresh);
});

test('every flag that a page names is one', () => {
  const program = new Command();
  addKeysCommand(program);
  addServiceCommands(program);
  const ofCommands = program.commands
    .flatMap((command) => [command, ...command.commands])
    .flatMap(({ options }) => options.map(({ long }) => long));
  const known = new Set(['--config', ...[...SERVE_FLAGS, ...UP_FLAGS].map(({ name }) => `--${name}`), ...ofCommands]);
  for (const page of readdirSync(docs)) {
    const named = new Set(readFileSync(join(docs, page), 'utf8').match(/(?<![\w-])--[a-z][a-z-]+/g));
    expect([page, [...named].filter((flag) => !known.has(flag))]).toEqual([page, []]);
  }
});

test('every link of a page leads somewhere', () => {
  for (const page of readdirSync(docs)) {
    for (const [, target] of readFileSync(join(docs, page), 'utf8').matchAll(/\]\(([^)#]+)\)/g))
      if (!/^https?:/.test(target)) expect(() => readFileSync(join(docs, target))).not.toThrow();
  }
});
