/** The path of a new user, over HTTP and with commands: from `capstan up` to a deleted key. */
import OpenAI from 'openai';
import type { Client } from '../../server/platform/api/client';
import { toLogLine } from '../../server/platform/api/client';
import type { Container, Deployment, Me } from '../../server/platform/api/objects';
import { killAll } from '../fakes/server-process';
import {
  ADMIN,
  capstan,
  clientOf,
  discardAll,
  eventually,
  makeDataDir,
  type RunningService,
  startService,
  until,
} from './service-process';

const { dataDir, passwordFile, remove } = makeDataDir();
let service: RunningService;
let client: Client;
let env: NodeJS.ProcessEnv;

const cli = (...args: string[]) => capstan(args, env);
const ask = (url: string, key: string) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 }).chat.completions.create({
    model: 'demo',
    messages: [{ role: 'user', content: 'What is Capstan?' }],
  });
const statusOf = async (url: string, key?: string): Promise<number> =>
  (await fetch(`${url}/v1/models`, key === undefined ? {} : { headers: { Authorization: `Bearer ${key}` } })).status;

afterAll(async () => {
  await discardAll(client).catch(() => {});
  killAll();
  remove();
});

test('the first start prints a setup link to standard output, and not to the log', async () => {
  const other = makeDataDir();
  try {
    const first = await startService(other.dataDir);
    const text = await first.until('/setup#');
    const token = /\/setup#(\S+)/.exec(text)![1];
    expect(first.output().stderr).not.toContain(token);
    const setUp = () =>
      fetch(`${first.url}/api/v1/bootstrap`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json', Origin: first.url },
        body: JSON.stringify({ token, email: ADMIN.email, name: 'Ada', password: ADMIN.password }),
      });
    expect((await setUp()).ok).toBe(true);
    expect((await setUp()).status).toBe(410);
    first.process.kill('SIGTERM');
    expect(await first.exited).toEqual([0, null]);
    const second = await startService(other.dataDir);
    expect(second.output().stdout).not.toContain('/setup#');
    second.process.kill('SIGTERM');
    await second.exited;
  } finally {
    other.remove();
  }
});

test('a start with bootstrap flags creates the administrator, and a token opens the API', async () => {
  service = await startService(dataDir, [
    '--admin-port',
    '0',
    '--bootstrap-email',
    ADMIN.email,
    '--bootstrap-password-file',
    passwordFile,
  ]);
  client = await clientOf(service, dataDir);
  const { stdout: token } = await capstan([
    'tokens',
    'create',
    '--data-dir',
    dataDir,
    '--email',
    ADMIN.email,
    '--name',
    'cli',
  ]);
  env = { CAPSTAN_URL: service.url, CAPSTAN_TOKEN: token.trim() };
  expect(await client.request<Me>('GET', '/me')).toMatchObject({ email: ADMIN.email, is_admin: true, via: 'token' });
  expect(service.output().stderr).not.toContain(token.trim());
  for (const url of [service.url, service.servingUrl])
    for (const path of ['/healthz', '/readyz']) expect((await fetch(url + path)).status).toBe(200);
});

test('a second service on the data directory is refused, with the holder of the lock', async () => {
  const { code, stderr } = await capstan(['up', '--data-dir', dataDir, '--port', '0']);
  expect([code, stderr]).toEqual([
    1,
    expect.stringContaining(`${dataDir} is in use by another service (process ${service.process.pid}, ${service.url})`),
  ]);
});

describe('from a training container to keys', () => {
  let container: Container;
  let chat: Deployment;
  let laptop: string;
  let ci: string;

  test('a container on the embedded model runs and serves', async () => {
    const created = await cli('containers', 'create', 'lab', '--model', 'demo', '--cpus', '1', '--memory', '2G');
    expect(created).toMatchObject({ code: 0, stdout: expect.stringContaining('stopped') });
    const started = await cli('containers', 'start', 'lab', '--wait', '--json');
    expect(started.code).toBe(0);
    container = JSON.parse(started.stdout) as Container;
    expect(container).toMatchObject({ name: 'lab', state: 'running' });
  });

  test('one click deploys the container', async () => {
    const preview = await client.containers.preview(container.id);
    expect(preview.spec).toMatchObject({
      compute: { cpu_millis: 1000, memory_mb: 2048 },
      image_id: container.image_id,
      start_command: null,
    });
    const created = await client.containers.deploy(container.id, { name: 'chat' });
    expect(created).toMatchObject({
      name: 'chat',
      state: 'pending',
      access_control: false,
      source_container_id: container.id,
    });
    ({ deployment: chat } = await until(client, created.id, 'running'));
    expect(chat).toMatchObject({ url: `${service.servingUrl}/d/${chat.slug}`, ready_replicas: 1 });
  });

  test('the OpenAI client chats with its URL, with and without streaming', async () => {
    expect((await ask(chat.url, 'none')).choices[0].message.content).toContain('Capstan');
    let text = '';
    const openai = new OpenAI({ baseURL: `${chat.url}/v1`, apiKey: 'none', maxRetries: 0 });
    for await (const chunk of await openai.chat.completions.create({
      model: 'demo',
      messages: [{ role: 'user', content: 'Count from 1 to 12.' }],
      stream: true,
    }))
      text += chunk.choices[0]?.delta.content ?? '';
    expect(text).toBe('1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12');
  });

  test("the gateway's metrics count its requests", async () => {
    const [, admin] = /metrics without authentication: (\S+)/.exec(service.output().stdout)!;
    let text = '';
    // The OpenAI client returns at the last event, shortly before the end of the stream.
    await eventually(async () => {
      text = await (await fetch(`${admin}/metrics`)).text();
      return /^capstan_gateway_requests_open 0$/m.test(text);
    });
    expect(text).toContain(`capstan_gateway_requests_total{deployment="${chat.slug}",status="2xx"} 2`);
    expect(text).toMatch(
      new RegExp(`capstan_gateway_tokens_total\\{deployment="${chat.slug}",type="completion"\\} [1-9]`),
    );
  });

  test('with access control, every request needs a key', async () => {
    const { code, stdout, stderr } = await cli('access', 'chat', 'on');
    expect([code, stdout]).toEqual([0, 'access control of chat is on (applied by 1 of 1 gateway)\n']);
    expect(stderr).toContain('no access key exists');
    expect([await statusOf(chat.url), await statusOf(chat.url, 'sk-wrong')]).toEqual([401, 401]);
    await expect(ask(chat.url, 'sk-wrong')).rejects.toMatchObject({ status: 401, code: 'invalid_api_key' });
  });

  test('user-level and deployment-level keys open it, and the deployment-level key opens nothing else', async () => {
    const other = await client.deployments.create({
      name: 'other',
      access_control: true,
      compute: { cpu_millis: 500, memory_mb: 1024 },
    });
    laptop = (await cli('keys', 'create', '--name', 'laptop')).stdout.trim();
    ci = (await cli('keys', 'create', '--name', 'ci', '--deployment', 'chat')).stdout.trim();
    expect([laptop, ci]).toEqual([expect.stringMatching(/^sk-cap1_/), expect.stringMatching(/^sk-cap1_/)]);
    expect([await statusOf(chat.url, laptop), await statusOf(chat.url, ci)]).toEqual([200, 200]);
    expect((await ask(chat.url, ci)).choices[0].message.content).toContain('Capstan');
    const {
      deployment: { url },
    } = await until(client, other.id, 'running');
    expect([await statusOf(url, laptop), await statusOf(url, ci)]).toEqual([200, 403]);
  });

  test('the container has its own URL, open only to user-level keys of its owner', async () => {
    const { url } = await client.containers.get(container.id);
    expect(url).toBe(`${service.servingUrl}/d/${container.id.replace('_', '-')}`);
    await eventually(async () => (await statusOf(url!, laptop)) === 200);
    expect([await statusOf(url!), await statusOf(url!, ci)]).toEqual([401, 403]);
    expect((await ask(url!, laptop)).choices[0].message.content).toContain('Capstan');
  });

  test('an edited binding and a deleted key take effect at once', async () => {
    const other = (await client.deployments.list({ q: 'other' }))[0];
    expect((await cli('keys', 'edit', 'ci', '--deployment', 'other')).code).toBe(0);
    expect([await statusOf(chat.url, ci), await statusOf(other.url, ci)]).toEqual([403, 200]);
    expect((await cli('keys', 'delete', 'ci', '--yes')).code).toBe(0);
    expect([await statusOf(other.url, ci), await statusOf(chat.url, laptop)]).toEqual([401, 200]);
  });

  test('versions and logs can be read', async () => {
    expect((await cli('versions', 'list', 'chat')).stdout).toMatch(/NUMBER +STATE[^\n]*\n1 +running +yes/);
    expect((await cli('versions', 'get', 'chat', '1')).stdout).toMatch(/runs +capstan serve demo/);
    const { stdout } = await cli('logs', 'chat', '-n', 'all', '--search', 'serves demo');
    expect(stdout).toMatch(/^Capstan \S+ serves demo/);
    const abort = new AbortController();
    for await (const event of client.versions.followLogs(chat.id, 1, { after: 0 }, abort.signal)) {
      expect(toLogLine(event)).toMatchObject({ seq: 1 });
      break;
    }
  });

  test('the test tool goes through the gateway, and streams', async () => {
    // Long enough for several chunks, however rarely the gateway reads.
    const body = JSON.stringify({
      model: 'demo',
      messages: [{ role: 'user', content: 'Count from 1 to 12.' }],
      stream: true,
      max_tokens: 500,
      ignore_eos: true,
    });
    const send = async (auth: { type: 'none' } | { type: 'key'; key: string }) => {
      const events = [];
      for await (const { data } of client.deployments.test(chat.id, {
        method: 'POST',
        path: '/v1/chat/completions',
        headers: [['Content-Type', 'application/json']],
        body,
        auth,
      }))
        events.push(JSON.parse(data));
      return events;
    };
    expect((await send({ type: 'none' }))[0]).toMatchObject({ type: 'head', status: 401 });
    const events = await send({ type: 'key', key: laptop });
    expect(events[0]).toMatchObject({ type: 'head', status: 200 });
    expect(events.filter(({ type }) => type === 'chunk').length).toBeGreaterThan(1);
    expect(events.at(-1)).toMatchObject({ type: 'end' });
    expect(
      events
        .filter(({ type }) => type === 'chunk')
        .map(({ text }) => text)
        .join(''),
    ).toContain('[DONE]');
  });

  test('a deployment with the task embed gives embeddings, and its metrics count their tokens', async () => {
    const created = await cli('deploy', 'vectors', '--task', 'embed', '--cpus', '0.5', '--wait', '--json');
    expect(created.code).toBe(0);
    const { id, slug, url } = (await client.deployments.list({ q: 'vectors' }))[0];
    const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
    const { data, usage } = await openai.embeddings.create({ model: 'demo', input: ['What is Capstan?', 'Hello!'] });
    expect(data.map(({ embedding }) => embedding.length)).toEqual([256, 256]);
    await expect(ask(url, 'none')).rejects.toMatchObject({ status: 400, code: 'unsupported_task' });
    const ranked = await fetch(`${url}/rerank`, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ query: 'Hello!', documents: ['What is Capstan?', 'Hello!'], top_n: 1 }),
    });
    const { results, usage: rankedUsage } = (await ranked.json()) as { results: unknown[]; usage: typeof usage };
    expect(results).toMatchObject([{ index: 1, document: { text: 'Hello!' } }]);
    const [, admin] = /metrics without authentication: (\S+)/.exec(service.output().stdout)!;
    const numTokens = usage.prompt_tokens + rankedUsage.prompt_tokens;
    await eventually(async () =>
      (await (await fetch(`${admin}/metrics`)).text()).includes(
        `capstan_gateway_tokens_total{deployment="${slug}",type="prompt"} ${numTokens}\n`,
      ),
    );
    expect((await cli('versions', 'get', 'vectors', '1')).stdout).toMatch(/runs +capstan serve demo --task embed/);
    expect((await cli('deployments', 'delete', id, '--yes')).code).toBe(0);
  });

  test('a new version rolls out, and the first one can be activated again', async () => {
    const rolled = await cli('versions', 'create', 'chat', '--max-model-len', '1K', '--note', 'shorter', '--wait');
    expect(rolled).toMatchObject({ code: 0, stdout: 'version 2 of chat serves\n' });
    expect(await client.deployments.get(chat.id)).toMatchObject({ active_version: 2, url: chat.url });
    expect(await cli('versions', 'activate', 'chat', '1', '--wait')).toMatchObject({
      code: 0,
      stdout: 'version 1 of chat serves\n',
    });
    expect(await statusOf(chat.url, laptop)).toBe(200);
  });

  test('one URL serves all deployments of the owner of a key, by name, alias and adapter', async () => {
    expect((await cli('deployments', 'edit', 'chat', '--alias', 'gpt-4o')).code).toBe(0);
    const { api_url: url } = await client.deployments.get(chat.id);
    expect([url, await statusOf(url), await statusOf(url, laptop)]).toEqual([service.servingUrl, 401, 200]);
    const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: laptop, maxRetries: 0 });
    const names = (await openai.models.list()).data.map(({ id }) => id);
    expect(names).toEqual(['chat', 'gpt-4o', 'other']);
    const messages = [{ role: 'user' as const, content: 'What is Capstan?' }];
    for (const model of ['chat', 'gpt-4o', 'chat/demo']) {
      const { choices, usage } = await openai.chat.completions.create({ model, messages });
      expect(choices[0].message.content).toContain('Capstan');
      expect(usage?.completion_tokens).toBeGreaterThan(0);
    }
    for (const model of ['chat/other', 'nothing'])
      await expect(openai.chat.completions.create({ model, messages })).rejects.toMatchObject({
        status: 404,
        code: 'model_not_found',
      });
  });

  test('a stopped deployment refuses requests; a request wakes one that is scaled to zero', async () => {
    const stopped = await cli('deployments', 'stop', 'chat', '--wait');
    expect(stopped).toMatchObject({ code: 0, stdout: `chat (${chat.id}) is paused\n` });
    const refused = await fetch(`${chat.url}/v1/models`, { headers: { Authorization: `Bearer ${laptop}` } });
    expect([refused.status, ((await refused.json()) as { error: { code: string } }).error.code]).toEqual([
      503,
      'deployment_paused',
    ]);
    expect((await cli('deployments', 'start', 'chat', '--wait')).code).toBe(0);
    const asleep = await cli('deployments', 'scale-to-zero', 'chat', '--wait');
    expect(asleep).toMatchObject({ code: 0, stdout: `chat (${chat.id}) is scaled_to_zero\n` });
    expect((await client.versions.get(chat.id, 1)).replicas).toEqual([]);
    expect((await ask(chat.url, laptop)).choices[0].message.content).toContain('Capstan');
  });

  test('the service writes no secret to its output', () => {
    const { stdout, stderr } = service.output();
    for (const secret of [laptop, ci, env.CAPSTAN_TOKEN!, ADMIN.password])
      expect([stdout, stderr].join('')).not.toContain(secret);
  });
});
