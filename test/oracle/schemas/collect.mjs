/**
 * Collects JSON Schemas from packages of npm that are installed in the current directory:
 * `node collect.mjs > npm.json`. `collect.sh` installs the packages and joins the parts.
 */
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const require = createRequire(path.resolve('package.json'));
const manifest = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`, 'utf8'));
const found = [];

/** Returns the files below a folder whose path ends with `end`. */
const files = (folder, end) =>
  readdirSync(folder, { recursive: true })
    .filter((file) => file.endsWith(end))
    .sort()
    .map((file) => path.join(folder, file));

function add(source, name, schema) {
  if (typeof schema !== 'object' || schema === null) return;
  const { version, license } = manifest(source);
  found.push({ source: `npm:${source}`, version, license: license ?? 'none named', name, schema });
}

/** MCP servers, with the arguments and the environment that make them start. They list their tools over stdio. */
const SERVERS = {
  '@modelcontextprotocol/server-everything': {},
  '@modelcontextprotocol/server-filesystem': { args: ['/tmp'] },
  '@modelcontextprotocol/server-memory': {},
  '@modelcontextprotocol/server-sequential-thinking': {},
  '@modelcontextprotocol/server-github': {},
  '@modelcontextprotocol/server-gitlab': { env: { GITLAB_PERSONAL_ACCESS_TOKEN: 'x' } },
  '@modelcontextprotocol/server-slack': { env: { SLACK_BOT_TOKEN: 'x', SLACK_TEAM_ID: 'x' } },
  '@modelcontextprotocol/server-brave-search': { env: { BRAVE_API_KEY: 'x' } },
  '@modelcontextprotocol/server-google-maps': { env: { GOOGLE_MAPS_API_KEY: 'x' } },
  '@modelcontextprotocol/server-puppeteer': {},
  '@playwright/mcp': { args: ['--caps', 'vision,pdf,testing,tracing'] },
  '@upstash/context7-mcp': {},
  'tavily-mcp': { env: { TAVILY_API_KEY: 'x' } },
  'firecrawl-mcp': { env: { FIRECRAWL_API_KEY: 'x' } },
  '@notionhq/notion-mcp-server': { env: { NOTION_TOKEN: 'x' } },
  'chrome-devtools-mcp': { bin: 'chrome-devtools-mcp', args: ['--no-usage-statistics'] },
  '@eslint/mcp': {},
  'exa-mcp-server': { env: { EXA_API_KEY: 'x' } },
  'mcp-server-kubernetes': {},
  '@wonderwhy-er/desktop-commander': { bin: 'desktop-commander' },
  '@mobilenext/mobile-mcp': {},
};

function listTools(name, { bin, args = [], env = {} }) {
  const bins = manifest(name).bin;
  const file = typeof bins === 'string' ? bins : bins[bin ?? Object.keys(bins)[0]];
  const server = spawn(process.execPath, [path.resolve('node_modules', name, file), ...args], {
    env: { PATH: process.env.PATH, HOME: '/tmp/mcp-home', ...env },
    stdio: ['pipe', 'pipe', 'ignore'],
  });
  const send = (message) => server.stdin.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error('no answer in 60 s')), 60_000);
    let text = '';
    server.stdin.on('error', reject);
    server.on('error', reject);
    server.on('exit', (code) => reject(new Error(`exit ${code}`)));
    server.stdout.on('data', (data) => {
      text += data;
      for (let end; (end = text.indexOf('\n')) >= 0; text = text.slice(end + 1)) {
        let message;
        try {
          message = JSON.parse(text.slice(0, end));
        } catch {
          continue;
        }
        if (message.id === 1) {
          send({ method: 'notifications/initialized' });
          send({ id: 2, method: 'tools/list', params: {} });
        } else if (message.id === 2) {
          clearTimeout(timer);
          resolve(message.result?.tools ?? []);
        }
      }
    });
    send({
      id: 1,
      method: 'initialize',
      params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'corpus', version: '1' } },
    });
  }).finally(() => {
    server.removeAllListeners('exit');
    server.kill('SIGKILL');
  });
}

async function addServers() {
  for (const [name, options] of Object.entries(SERVERS)) {
    try {
      for (const tool of await listTools(name, options)) {
        add(name, `${tool.name} input`, tool.inputSchema);
        if (tool.outputSchema) add(name, `${tool.name} output`, tool.outputSchema);
      }
    } catch (error) {
      console.error(`${name}: ${error.message}`);
    }
  }
}

/** Files that are schemas themselves. */
function addFiles() {
  for (const file of files('node_modules/@schematics/angular', '/schema.json'))
    add('@schematics/angular', path.basename(path.dirname(file)), JSON.parse(readFileSync(file, 'utf8')));
  for (const file of files('node_modules/webpack/schemas/plugins', '.json'))
    add('webpack', path.basename(file, '.json'), JSON.parse(readFileSync(file, 'utf8')));
}

async function addEslint() {
  const { builtinRules } = require('eslint/use-at-your-own-risk');
  for (const [name, rule] of builtinRules) {
    const schema = rule.meta.schema;
    if (Array.isArray(schema) && schema.length > 0) add('eslint', name, schema[0]);
    else if (!Array.isArray(schema) && schema) add('eslint', name, schema);
  }
}

/** The `z.object(…)` in the documentation of the AI SDK. */
async function addAiDocs() {
  const z = require('zod');
  for (const file of files('node_modules/ai/docs', '.mdx')) {
    const text = readFileSync(file, 'utf8');
    let count = 0;
    for (let at = -1; (at = text.indexOf('z.object(', at + 1)) >= 0;) {
      let end = at + 8;
      for (let depth = 0; end < text.length; end++) {
        if (text[end] === '(') depth++;
        if (text[end] === ')' && --depth === 0) break;
      }
      try {
        const schema = new Function('z', `return ${text.slice(at, end + 1)}`)(z);
        add('ai', `${path.basename(file, '.mdx')} ${++count}`, z.toJSONSchema(schema));
      } catch {
        // Refers to other code of the example, or has no JSON Schema.
      }
    }
  }
}

async function addZod() {
  const z = require('zod');
  const { kinds } = await import('./zod-kinds.mjs');
  for (const target of ['draft-2020-12', 'draft-7', 'openapi-3.0']) {
    for (const [name, schema] of Object.entries(kinds(z))) {
      try {
        add('zod', `${name} ${target}`, z.toJSONSchema(schema, { target }));
      } catch {
        // This kind has no JSON Schema.
      }
    }
  }
}

async function addTypebox() {
  const { kinds } = await import('./typebox-kinds.mjs');
  for (const name of ['@sinclair/typebox', 'typebox']) {
    const entry = require
      .resolve(name)
      .replace(/\/cjs\//, '/esm/')
      .replace(/\.js$/, '.mjs');
    const { Type } = await import(pathToFileURL(entry).href).catch(() => require(name));
    for (const [kind, schema] of Object.entries(kinds(Type)))
      if (schema !== undefined) add(name, kind, JSON.parse(JSON.stringify(schema)));
  }
  const agent = await import(
    pathToFileURL(path.resolve('node_modules/@mariozechner/pi-coding-agent/dist/index.js')).href
  );
  for (const make of [
    'createReadTool',
    'createBashTool',
    'createEditTool',
    'createWriteTool',
    'createGrepTool',
    'createFindTool',
    'createLsTool',
  ])
    if (typeof agent[make] === 'function')
      add('@mariozechner/pi-coding-agent', make, JSON.parse(JSON.stringify(agent[make]('/tmp').parameters)));
}

for (const part of [addFiles, addEslint, addAiDocs, addZod, addTypebox, addServers]) {
  try {
    await part();
  } catch (error) {
    console.error(`${part.name}: ${error.stack}`);
  }
}
process.stdout.write(JSON.stringify(found), () => process.exit(0));
