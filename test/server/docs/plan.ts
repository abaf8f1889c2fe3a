/**
 * How each code block of the documentation is checked. Without an entry here:
 *
 * - `js` and `ts` are type-checked, with the variables of `type-check.ts`.
 * - Shell commands are parsed by bash, and the arguments of `capstan` are compared with its commands and flags.
 *   `run.ts` runs those of {@link SESSIONS}.
 *
 * `test/server/docs/blocks.test.ts` fails on an entry that fits no block.
 */
export type Check =
  /** Not checked here, and why. */
  | { skip: string }
  /** Each line is a JSON value. */
  | { json: true }
  | { yaml: true }
  /** The shell commands are parsed, but not run, and why. */
  | { parseOnly: string };

const HUB =
  'needs a model from the hub, which CI has no access to; use-the-hub is tested with a local hub by test/models/hub.test.ts';
const GPU = 'needs a GPU';
const TOOLS = 'commands of a developer: .ci/run and .ci/full run them';
const CLIENTS = 'a client that is no dependency: test/clients/run.sh runs it with the same settings';
const GENERATED = 'generated from the code, which test/server/docs.test.ts compares';
const PLACEHOLDERS = 'has placeholders for what only the reader has';

/** By page, then by the first line of a block. `*`: all blocks of the page. */
export const CHECKS: Readonly<Record<string, Readonly<Record<string, Check>>>> = {
  'README.md': {
    'npm ci && npm start': { skip: TOOLS },
    'npm ci && npm test': { skip: TOOLS },
    'npm run build         # TypeScript': { skip: TOOLS },
    'npx capstan up --data-dir ./service': { parseOnly: 'run by the session of docs/how-to/run-the-service.md' },
    'npx capstan login http://127.0.0.1:8090    # asks for a management token, which the console creates': {
      parseOnly: 'asks for a token; the session of docs/how-to/run-the-service.md runs the same commands',
    },
  },
  'docs/architecture.md': { '*': { skip: 'a drawing' } },
  'docs/getting-started.md': { 'npm ci': { skip: TOOLS } },
  'docs/how-to/benchmark.md': {
    'capstan bench ops --rows 1,8,64,512 --report ops.html': { parseOnly: 'takes minutes; test/server/cli runs both' },
    'capstan bench peers --rounds 3 --report peers.html': { parseOnly: 'needs llama.cpp and OpenVINO' },
  },
  'docs/how-to/build-the-packages.md': { '*': { skip: TOOLS } },
  'docs/how-to/call-tools.md': {
    '{"role": "assistant", "content": "", "tool_calls": [{"id": "call_…", "type": "function", "function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Bern\\"}"}}]}':
      { json: true },
  },
  'docs/how-to/chat-in-the-terminal.md': {
    'capstan chat                                # the embedded model': { parseOnly: HUB },
    'capstan run -p "Why is the sky blue?"': { parseOnly: HUB },
  },
  'docs/how-to/deploy-a-model.md': {
    'capstan deploy small --model Qwen/Qwen2.5-0.5B-Instruct --quantization int8 --memory 2G --wait': {
      parseOnly: HUB,
    },
    'capstan data pull qwen Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M --check     # downloads nothing': { parseOnly: HUB },
    'capstan up --data-dir ./service --data-root /data               # on the machine of the service': {
      parseOnly: PLACEHOLDERS,
    },
    "capstan deploy own --input app --start 'exec python3 /platform/input/input0/serve.py --host 0.0.0.0 --port 80' \\":
      {
        parseOnly: 'needs a data source with a program; test/models/service.test.ts deploys one',
      },
    'capstan deployments edit chat --fallback small --fallback-after 20s': { parseOnly: HUB },
    'export PROVIDER_KEY=sk-…': { parseOnly: 'needs a provider; test/models runs upstreams' },
    'capstan deployments edit chat --min-replicas 1 --max-replicas 4': {
      parseOnly: 'four replicas take the memory of CI; test/models/service.test.ts scales',
    },
    "capstan containers create lab --home workspace --start 'exec python3 /platform/home/app.py --port $PLATFORM_SERVING_PORT'":
      { parseOnly: 'needs a home with a program' },
  },
  'docs/how-to/embed-the-engine.md': {
    '// Express. Parsed bodies (express.json) are accepted too.': {
      skip: 'parts of four programs; test/clients/providers.sh runs those of Express, Fastify, Hono and Next.js in examples/',
    },
  },
  'docs/how-to/embeddings-and-reranking.md': {
    'npx capstan serve BAAI/bge-small-en-v1.5 --port 8000': { parseOnly: HUB },
    "curl http://127.0.0.1:8000/v1/embeddings -H 'Content-Type: application/json' -d '{": { parseOnly: HUB },
    'npx capstan serve BAAI/bge-reranker-base --port 8001': { parseOnly: HUB },
    "curl http://127.0.0.1:8001/v1/score -H 'Content-Type: application/json' -d '{": { parseOnly: HUB },
    "node examples/rag.mjs --embedder BAAI/bge-small-en-v1.5 --reranker BAAI/bge-reranker-base 'What is a replica?'": {
      parseOnly: HUB,
    },
    'npx capstan deploy embeddings --model bge-small --wait': { parseOnly: HUB },
    'from openai import OpenAI': { skip: 'Python; test/clients/run.sh runs the package openai of PyPI' },
  },
  'docs/how-to/monitor.md': { '# prometheus.yml': { yaml: true } },
  'docs/how-to/protect-with-keys.md': {
    'DATABASE_URL=postgres://capstan@db/capstan capstan serve demo --access-control': { parseOnly: PLACEHOLDERS },
  },
  'docs/how-to/receive-webhooks.md': {
    "SECRET=$(capstan webhooks create https://hooks.example.com/capstan --event 'deployment.*' --event version.error)":
      {
        parseOnly: PLACEHOLDERS,
      },
    '{"type": "deployment.running", "timestamp": "2030-01-31T12:00:00.000Z", "seq": 41, "owner": {"type": "user", "id": "usr_…"}, "target": {"type": "deployment", "id": "dep_…"}, "data": {"version": 1}}':
      { json: true },
    'capstan webhooks redeliver https://hooks.example.com/capstan whd_…': { parseOnly: PLACEHOLDERS },
    'capstan webhooks rotate https://hooks.example.com/capstan --grace 24h    # prints the new secret': {
      parseOnly: PLACEHOLDERS,
    },
  },
  'docs/how-to/run-a-batch.md': {
    '{"custom_id": "review-1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "Summarize: …"}], "max_tokens": 200}}':
      { json: true },
  },
  'docs/how-to/run-on-a-gpu.md': { '*': { skip: GPU } },
  'docs/how-to/run-the-service.md': {
    'capstan up --host 0.0.0.0 --ssl-certfile cert.pem --ssl-keyfile key.pem': { parseOnly: PLACEHOLDERS },
    'capstan up --public-url https://console.example.com --serving-url https://models.example.com --trusted-proxy 10.0.0.0/8':
      { parseOnly: PLACEHOLDERS },
    'capstan up --console-host console.example.com --serving-url https://models.example.com:8091 --host 0.0.0.0 --ssl-certfile cert.pem --ssl-keyfile key.pem':
      { parseOnly: PLACEHOLDERS },
    'DATABASE_URL=postgres://capstan@db/capstan capstan up --data-dir ./service': { parseOnly: PLACEHOLDERS },
  },
  'docs/how-to/serve-several-models.md': {
    'models-memory: 12G': { yaml: true },
  },
  'docs/how-to/use-coding-agents.md': {
    'export ANTHROPIC_BASE_URL=http://127.0.0.1:8080': { parseOnly: 'starts a program that is not part of Capstan' },
    'claude -p "Make check.js pass." --allowedTools Bash,Edit,Read,Write': {
      parseOnly: 'starts a program that is not part of Capstan',
    },
    'model = "coder"': { skip: 'the configuration of Codex (TOML)' },
    '{': { skip: 'a file of Codex: test/clients/agents.ts runs it with the same fields' },
    'export CAPSTAN_KEY=YOUR_API_KEY': { parseOnly: 'starts a program that is not part of Capstan' },
    "new OpenAI({ baseURL: 'http://127.0.0.1:8080/v1', apiKey }).responses.create({ model: 'coder', input: 'Hi' });": {
      skip: 'JavaScript, run by test/server/inference/interfaces',
    },
  },
  'docs/how-to/use-the-ai-sdk-or-langchain.md': {
    'npm install capstan ai@7': { skip: 'installs packages' },
    'npm install capstan @langchain/core': { skip: 'installs packages' },
    "import { createOpenAICompatible } from '@ai-sdk/openai-compatible';": { skip: CLIENTS },
    "import { ChatOpenAI } from '@langchain/openai';": { skip: CLIENTS },
    "import { Agent, run, setDefaultOpenAIClient, setTracingDisabled } from '@openai/agents';": { skip: CLIENTS },
  },
  'docs/reference/access-keys.md': { 'Authorization: Bearer sk-cap1_…': { skip: 'a header' } },
  'docs/reference/command-line.md': { '*': { skip: GENERATED } },
  'docs/reference/deployments.md': { 'folder "NAME"': { skip: 'a format' } },
  'docs/reference/http-api.md': {
    '{"error": {"message": "temperature: expected a number from 0 to 2, got 3", "type": "invalid_request_error", "param": "temperature", "code": "invalid_value"}}':
      { json: true },
    '{"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: expected a value, but it is missing"}, "request_id": "…"}':
      { json: true },
  },
};

/** The generated blocks of these pages are compared with the code or with tested files. */
export const GENERATED_LANGUAGES: Readonly<Record<string, readonly string[]>> = {
  'docs/reference/library.md': ['ts'],
  'docs/how-to/run-behind-a-proxy.md': ['text'],
};

/** Pages that `run.ts` runs from top to bottom, in one shell. */
export interface Session {
  pages: readonly string[];
  /** Commands before the first block. `serve_at PORT COMMAND` starts a server. */
  prelude?: string;
  /** Texts of the pages to replace, such as models and times. */
  replace?: Readonly<Record<string, string>>;
  /** Whether the JavaScript of the pages is run too. */
  runsPrograms?: boolean;
}

/** A service with an account, and a token for the commands. */
const SERVICE = `
printf 'correct horse battery' > password.txt && chmod 600 password.txt
serve_at 8090 capstan up --data-dir ./service --bootstrap-email ada@example.com --bootstrap-password-file password.txt
export CAPSTAN_URL=http://127.0.0.1:8090
export CAPSTAN_TOKEN=$(capstan tokens create --data-dir ./service --email ada@example.com --name cli)
`;
const DEMO = 'serve_at 8080 capstan serve demo';

export const SESSIONS: readonly Session[] = [
  { pages: ['README.md'], replace: { ' --max-model-len 8K': '' } },
  { pages: ['docs/getting-started.md'], prelude: DEMO, runsPrograms: true },
  { pages: ['docs/how-to/call-tools.md'], prelude: DEMO },
  { pages: ['docs/how-to/structured-output.md'], prelude: DEMO },
  { pages: ['docs/how-to/chat-in-the-terminal.md'] },
  { pages: ['docs/how-to/protect-with-keys.md'] },
  {
    pages: ['docs/how-to/benchmark.md'],
    prelude: DEMO,
    replace: { '--num-prompts 200': '--num-prompts 20', '--num-prompts 64': '--num-prompts 16' },
  },
  { pages: ['docs/how-to/monitor.md'], replace: { 'serve DIR': 'serve demo' } },
  { pages: ['docs/how-to/run-the-service.md'], replace: { 'PASSWORD=…': "PASSWORD='correct horse battery'" } },
  {
    pages: ['docs/how-to/deploy-a-model.md'],
    prelude: SERVICE,
  },
  {
    pages: ['docs/how-to/serve-a-model.md'],
    prelude:
      'openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=localhost 2> /dev/null',
    replace: { ' --max-model-len 8K': '', 'serve DIR': 'serve demo' },
  },
];
