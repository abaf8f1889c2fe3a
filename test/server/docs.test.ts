/** Checks docs/ against the code. CAPSTAN_WRITE_DOCS=1 writes the generated tables. */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { type Argument, Command, type Option } from 'commander';
import ts from 'typescript';
import { ERROR_KINDS } from '../../server/base/errors';
import { addBenchCommand } from '../../server/cli/bench/command';
import { optionHelp } from '../../server/cli/help';
import { addServiceCommands } from '../../server/platform/cli';
import { addKeysCommand } from '../../server/cli/commands/keys';
import { addChatCommand } from '../../server/cli/commands/chat';
import { addCompletionCommand } from '../../server/cli/commands/completion';
import { addDoctorCommand } from '../../server/cli/commands/doctor';
import { addHealthCommand } from '../../server/cli/commands/health';
import { addModelCommands } from '../../server/cli/commands/models';
import { addQuantizeCommand } from '../../server/cli/commands/quantize';
import { addRunCommand } from '../../server/cli/commands/run';
import { addServeCommand } from '../../server/cli/commands/serve';
import { App } from '../../server/inference/app';
import { batchRoutes } from '../../server/storage/batches/routes';
import { Metrics } from '../../server/inference/metrics/metrics';
import { openApiDocument } from '../../server/inference/openapi/document';
import { openApiRoute } from '../../server/inference/openapi/route';
import { ERROR_CODES } from '../../ts';
import { FAMILIES } from '../../ts/model/families';
import { ARCHITECTURES, type GgufArchitecture } from '../../ts/model/gguf/architectures';
import { PRE_TOKENIZER_NAMES } from '../../ts/model/gguf/pre-tokenizers';
import { SUPPORTED_TENSOR_TYPES } from '../../ts/model/gguf/tensor-types';
import { QUANTIZATION_METHODS } from '../../ts/model/quantization';

const root = join(__dirname, '../..');
const docs = join(root, 'docs');
const pages = readdirSync(docs, { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.md'));
const read = (page: string): string => readFileSync(join(docs, page), 'utf8');

/** Checks the generated parts of a page, or writes them when asked to. */
function checkGenerated(page: string, parts: Record<string, string>): void {
  let fresh = read(page);
  for (const [name, text] of Object.entries(parts)) {
    expect(fresh).toContain(`<!-- ${name} -->\n`);
    const part = new RegExp(`(<!-- ${name} -->\n)[^]*?(<!-- end -->)`);
    fresh = fresh.replace(part, (_all, begin: string, end: string) => `${begin}${text}\n${end}`);
  }
  if (process.env.CAPSTAN_WRITE_DOCS === '1') writeFileSync(join(docs, page), fresh);
  expect(read(page)).toBe(fresh);
}

function program(): Command {
  const all = new Command('capstan');
  addServeCommand(all, () => {});
  addServiceCommands(all, () => {});
  addKeysCommand(all);
  addModelCommands(all, () => {});
  addQuantizeCommand(all, () => {});
  addBenchCommand(all, () => {});
  addChatCommand(all, () => {});
  addRunCommand(all, () => {});
  addDoctorCommand(all, () => {});
  addHealthCommand(all, () => {});
  addCompletionCommand(all);
  return all;
}

function openApi(): any {
  const app: App = new App({
    servedNames: [],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 1000, slowClientTimeoutMs: 1000 },
    log: {} as never,
    routes: [
      new Metrics({ compat: 'none' }).route,
      ...batchRoutes(() => undefined as never),
      openApiRoute(() => app.routes, false),
    ],
  });
  return openApiDocument(app.routes, { version: '1', hasAccess: true });
}

function routesTable(): string {
  const rows = Object.entries<any>(openApi().paths).flatMap(([path, operations]) =>
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
  const codesOf = (status: number) => codes.filter(([, kind]) => kind.status === status).map(([code]) => `\`${code}\``);
  return [
    '| status | codes |',
    '|---|---|',
    ...statuses.map((status) => `| ${status} | ${codesOf(status).join(', ')} |`),
  ].join('\n');
}

const cell = (text: string): string => text.replaceAll('|', '\\|').replace(/\s+/g, ' ').trim();

/** Markdown code. A text with a backtick needs two backticks around it. */
function code(text: string): string {
  return text.includes('`') ? `\`\` ${text} \`\`` : `\`${text}\``;
}

function argumentRow(argument: Argument): string {
  const name = argument.required ? `<${argument.name()}>` : `[${argument.name()}]`;
  return `| \`${name}\` | ${cell(argument.description)} |`;
}

function optionRow(option: Option): string {
  return `| \`${cell(option.flags)}\` | ${cell(optionHelp(option))} |`;
}

/** One section for each command, with its subcommands and flags. */
function commandSections(command: Command, path: string): string[] {
  const name = `${path} ${command.name()}`;
  const subcommands = command.commands.filter((sub) => sub.name() !== 'help');
  const visible = command.options.filter(({ hidden }) => !hidden);
  const groups = [...new Set(visible.map(({ helpGroupHeading }) => helpGroupHeading))];
  const described = command.registeredArguments.filter(({ description }) => description !== '');
  const argumentTable = ['| argument | |', '|---|---|', ...described.map(argumentRow), ''];
  const tables = groups.flatMap((group) => [
    ...(group === undefined ? [] : [`**${group}**`, '']),
    '| flag | |',
    '|---|---|',
    ...visible.filter(({ helpGroupHeading }) => helpGroupHeading === group).map(optionRow),
    '',
  ]);
  const usage = subcommands.length > 0 ? [] : [`    ${name} ${command.usage()}`.replace('[options] [command]', ''), ''];
  const heading = path === 'capstan' ? '##' : '###';
  return [
    `${heading} ${name}`,
    '',
    `${command.description()}.`,
    '',
    ...usage,
    ...(described.length > 0 ? argumentTable : []),
    ...tables,
    ...subcommands.flatMap((sub) => commandSections(sub, name)),
  ];
}

function sourceOf(file: string): ts.SourceFile {
  return ts.createSourceFile(file, readFileSync(join(root, file), 'utf8'), ts.ScriptTarget.Latest, true);
}

/** The type aliases of a file, by name. */
function aliasesOf(file: string): Map<string, string> {
  const source = sourceOf(file);
  const aliases = source.statements.filter(ts.isTypeAliasDeclaration);
  return new Map(aliases.map(({ name, type }) => [name.text, type.getText(source)]));
}

/** A type as written, with the names of the native data types replaced by their values. */
function typeText(text: string): string {
  const [name] = /\bNative\w+/.exec(text) ?? [];
  return name === undefined ? text : typeText(text.replace(name, aliasesOf('ts/addon-types.ts').get(name)!));
}

/** The types that the library reference names. */
const TYPES: readonly (readonly [file: string, name: string])[] = [
  ['ts/text/messages.ts', 'ChatMessage'],
  ['ts/text/messages.ts', 'TextPart'],
  ['ts/text/messages.ts', 'ToolCallInput'],
  ['ts/text/messages.ts', 'Tool'],
  ['ts/chat.ts', 'ToolChoice'],
  ['ts/text/reasoning/effort.ts', 'ReasoningEffort'],
  ['ts/structured-output.ts', 'StructuredOutput'],
  ['ts/sampling.ts', 'SamplingDefaults'],
  ['ts/options.ts', 'LoadProgress'],
  ['ts/pooling.ts', 'ModelTask'],
  ['ts/pooling.ts', 'PoolingOptions'],
  ['ts/pooling.ts', 'EmbedOptions'],
  ['ts/pooling.ts', 'EmbedResult'],
  ['ts/pooling.ts', 'ScoreResult'],
  ['ts/pooling.ts', 'PoolingUsage'],
  ['ts/adapters.ts', 'AdapterInfo'],
  ['ts/hub/settings.ts', 'HubKind'],
  ['ts/hub/models.ts', 'HubOptions'],
  ['ts/hub/models.ts', 'PullOptions'],
  ['ts/hub/fit.ts', 'FitOptions'],
  ['ts/hub/pull.ts', 'DownloadProgress'],
  ['ts/hub/pull.ts', 'PulledModel'],
  ['ts/hub/model-info.ts', 'ModelInfo'],
  ['ts/quantize/quantize.ts', 'QuantizeOptions'],
  ['ts/quantize/quantize.ts', 'QuantizeProgress'],
  ['ts/quantize/quantize.ts', 'QuantizedModel'],
  ['ts/hub/fit.ts', 'ModelFit'],
  ['ts/hub/cache-contents.ts', 'CachedRepository'],
  ['ts/hub/cache-contents.ts', 'CachedRevision'],
  ['ts/events.ts', 'GenerationResult'],
  ['ts/events.ts', 'Choice'],
  ['ts/text/messages.ts', 'ToolCall'],
  ['ts/events.ts', 'FinishReason'],
  ['ts/events.ts', 'Usage'],
  ['ts/events.ts', 'TokenLogprob'],
  ['ts/addon-types.ts', 'StepStats'],
  ['ts/addon-types.ts', 'StepProfile'],
  ['ts/speculation.ts', 'SpeculativeOptions'],
  ['ts/call-context.ts', 'CallContext'],
  ['ts/generation-streams.ts', 'StreamFormat'],
  ['ts/generation-streams.ts', 'ResponseOptions'],
  ['ts/chat-session.ts', 'ChatSessionOptions'],
  ['ts/run-tools.ts', 'RunToolsOptions'],
  ['ts/run-tools.ts', 'ToolDefinition'],
  ['ts/run-tools.ts', 'ToolContext'],
  ['ts/run-tools.ts', 'ToolResultEvent'],
  ['ts/run-tools.ts', 'ToolRunResult'],
  ['ts/generate-object.ts', 'GenerateObjectOptions'],
  ['ts/generate-object.ts', 'GeneratedObject'],
  ['ts/standard-schema.ts', 'StandardSchema'],
  ['ts/standard-schema.ts', 'AnySchema'],
  ['ts/machine-info.ts', 'MachineInfo'],
  ['ts/machine-info.ts', 'GpuInfo'],
];

/** A link to a symbol in JSDoc. Markdown does not know it. */
const LINK = /\{@link ([\w.]+)\}/g;

/** The declaration of a type as written, with its comments. */
function declaration(file: string, name: string): string {
  const source = sourceOf(file);
  const node = source.statements.find(
    (statement) =>
      (ts.isInterfaceDeclaration(statement) || ts.isTypeAliasDeclaration(statement)) && statement.name.text === name,
  );
  return node!
    .getFullText(source)
    .trim()
    .replace(/^export /m, '')
    .replace(LINK, '`$1`');
}

/** A table of the properties of interfaces: their JSDoc is the reference. */
function interfaceTable(...interfaces: readonly (readonly [file: string, name: string])[]): string {
  const rows = interfaces.flatMap(([file, name]) => interfaceRows(file, name));
  return ['| name | type | |', '|---|---|---|', ...rows].join('\n');
}

function interfaceRows(file: string, name: string): string[] {
  const source = sourceOf(file);
  const rows: string[] = [];
  const visit = (node: ts.Node): void => {
    if (ts.isInterfaceDeclaration(node) && node.name.text === name) {
      for (const member of node.members) {
        if (!ts.isPropertySignature(member)) continue;
        const comments = ts
          .getJSDocCommentsAndTags(member)
          .map(({ comment }) => (ts.getTextOfJSDocComment(comment) ?? '').replace(LINK, '`$1`'));
        const type = typeText(member.type?.getText(source) ?? '')
          .replace(/\/\*\*.*?\*\//gs, '')
          .replace(/\s+/g, ' ')
          // A union on several lines begins with a bar.
          .replace(/^\| /, '')
          .replaceAll(' | ', ' or ');
        rows.push(`| \`${member.name.getText(source)}\` | ${code(cell(type))} | ${cell(comments.join(' '))} |`);
      }
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  expect(rows.length).toBeGreaterThan(0);
  return rows;
}

test('the tables of the HTTP reference are those of the code', () => {
  checkGenerated('reference/http-api.md', { routes: routesTable(), errors: errorsTable() });
});

test('the command-line reference lists every command and flag', () => {
  const sections = program().commands.flatMap((command) => commandSections(command, 'capstan'));
  checkGenerated('reference/command-line.md', { commands: `\n${sections.join('\n').trim()}\n` });
});

test('the library reference lists every option and error code', () => {
  checkGenerated('reference/library.md', {
    'engine-options': interfaceTable(['ts/options.ts', 'EngineOptions']),
    sampling: interfaceTable(['ts/sampling.ts', 'SamplingParams']),
    chat: interfaceTable(['ts/chat.ts', 'ChatOptions']),
    info: interfaceTable(['ts/engine-info.ts', 'EngineInfo'], ['ts/addon-types.ts', 'NativeEngineInfo']),
    stats: interfaceTable(['ts/engine-info.ts', 'EngineStats'], ['ts/addon-types.ts', 'NativeStats']),
    handler: interfaceTable(['server/inference/handler.ts', 'HandlerOptions']),
    types: `\n\`\`\`ts\n${TYPES.map(([file, name]) => declaration(file, name)).join('\n\n')}\n\`\`\`\n`,
  });
  const table = read('reference/library.md').split('<!-- error-codes -->')[1];
  expect([...table.matchAll(/^\| `(\w+)` \|/gm)].map(([, code]) => code)).toEqual([...ERROR_CODES]);
});

function familiesTable(): string {
  const rows = FAMILIES.map(({ modelType, architecture, pooling }) => {
    const writes = (row: GgufArchitecture) =>
      row.classNames?.includes(architecture) ??
      (pooling === undefined && [row, ...(row.variants ?? [])].some((other) => other.modelType === modelType));
    const names = ARCHITECTURES.filter(writes).map(({ name }) => `\`${name}\``);
    const task = pooling?.task ?? 'generate';
    return `| \`${architecture}\` | \`${modelType}\` | \`${task}\` | ${names.join(', ') || 'not yet'} |`;
  });
  return [
    '| architecture | `model_type` in config.json | task | `general.architecture` in GGUF |',
    '|---|---|---|---|',
    ...rows,
  ].join('\n');
}

function tensorTypesTable(): string {
  const rows = SUPPORTED_TENSOR_TYPES.map(({ name, size, bytes }) => `| ${name} | ${(8 * bytes) / size} |`);
  return ['| type | bits per weight in the file |', '|---|---|', ...rows].join('\n');
}

function quantizationMethodsTable(): string {
  const rows = QUANTIZATION_METHODS.map(({ name, description }) => `| \`${name}\` | ${description} |`);
  return ['| `quant_method` | what runs |', '|---|---|', ...rows].join('\n');
}

test('the page about models lists families, types of weights and pre-tokenizers', () => {
  checkGenerated('models.md', {
    families: familiesTable(),
    'quantization-methods': quantizationMethodsTable(),
    'tensor-types': tensorTypesTable(),
    'pre-tokenizers': PRE_TOKENIZER_NAMES.map((name) => `\`${name}\``).join(', '),
  });
});

test('the guide to reverse proxies shows the tested configurations', () => {
  const config = (file: string) => {
    const text = readFileSync(join(root, 'test/proxies', file), 'utf8')
      .replaceAll('\t', '    ')
      .trimEnd();
    return `\`\`\`\n${text}\n\`\`\``;
  };
  checkGenerated('how-to/run-behind-a-proxy.md', {
    nginx: config('nginx.conf'),
    'nginx-keepalive': config('nginx-keepalive.conf'),
    haproxy: config('haproxy.cfg'),
    caddy: config('Caddyfile'),
  });
});

test('every type in the tables of the library reference is declared on the page', () => {
  const page = read('reference/library.md');
  const tables = ['engine-options', 'sampling', 'chat', 'info', 'stats', 'handler'].map(
    (name) => page.split(`<!-- ${name} -->\n`)[1].split('\n<!-- end -->')[0],
  );
  const types = tables.flatMap((table) => table.split('\n').slice(2)).map((row) => row.split(' | ')[1]);
  const named = types.flatMap((type) => type.match(/\b[A-Z]\w+/g) ?? []);
  const known = [
    'Engine',
    'EngineOptions',
    'TracerProvider',
    'AbortSignal',
    'Int32Array',
    'Readonly',
    'ReadonlyMap',
    'Record',
  ];
  const declared = TYPES.map(([, name]) => name);
  expect(named).toContain('SamplingDefaults');
  expect(named.filter((name) => !known.includes(name) && !declared.includes(name))).toEqual([]);
});

/** Flags of esbuild, curl, useradd, systemctl, npm, git, gh, cosign, podman, codex and programs of this repository. */
const OF_OTHER_PROGRAMS = new Set([
  '--sentence-transformers-dense-modules',
  '--external',
  '--retry',
  '--retry-connrefused',
  '--retry-delay',
  '--system',
  '--now',
  '--embedder',
  '--reranker',
  '--node',
  '--provenance',
  '--follow-tags',
  '--repo',
  '--certificate-oidc-issuer',
  '--certificate-identity-regexp',
  '--format',
  '--build-arg',
  '--cap-add',
  '--cap-drop',
  '--network',
  '--security-opt',
  '--skip-git-repo-check',
]);

test('every flag that a page names exists', () => {
  const all = (command: Command): Command[] => [command, ...command.commands.flatMap(all)];
  const flags = all(program()).flatMap(({ options }) =>
    options.flatMap(({ long, negate }) => [long, negate ? '' : `--no-${long?.slice(2)}`]),
  );
  const known = new Set<string | null | undefined>([...flags, '--version', '--help']);
  for (const page of pages) {
    const named = new Set(read(page).match(/(?<![\w-])--[a-z][a-z-]+(?![\w-])/g));
    expect([page, [...named].filter((flag) => !known.has(flag) && !OF_OTHER_PROGRAMS.has(flag))]).toEqual([page, []]);
  }
});

test('every link of a page leads to a file and a heading', () => {
  const anchors = (text: string) =>
    [...text.matchAll(/^#+ (.*)$/gm)].map(([, title]) =>
      title
        .toLowerCase()
        .replace(/[^\w\- ]/g, '')
        .replaceAll(' ', '-'),
    );
  for (const page of pages) {
    for (const [, target, anchor] of read(page).matchAll(/\]\(([^)#]*)(?:#([^)]+))?\)/g)) {
      if (/^https?:/.test(target)) continue;
      const file = target === '' ? join(docs, page) : join(docs, dirname(page), target);
      const text = readFileSync(file, 'utf8');
      if (anchor !== undefined) expect([page, anchors(text)]).toEqual([page, expect.arrayContaining([anchor])]);
    }
  }
});

test('every path that the architecture page names exists', () => {
  const paths = [
    ...read('architecture.md').matchAll(/`((?:native|cuda|ts|server|test|benchmarks|models)\/[\w./-]*)`/g),
  ].map(([, path]) => path);
  expect(paths.length).toBeGreaterThan(50);
  expect(paths.filter((path) => !existsSync(join(root, path)))).toEqual([]);
});
