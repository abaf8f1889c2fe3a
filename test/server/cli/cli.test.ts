/** Runs the command as a process: output, exit codes and signals. */
import { execFileSync, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fromEnvironment } from '../../../server/cli/environment';
import { FLAG_NAMES, FlagValues, resolveServeOptions } from '../../../server/cli/flag-sources';
import { run } from '../../../server/cli/program';
import { killAll, prepare, type Running, start, startServer } from '../../fakes/server-process';
import { temporaryFolder } from '../../fakes/temporary-folder';
import { tinyModel } from '../../fakes/tiny-model';

const modelDir = tinyModel();
let env: NodeJS.ProcessEnv;

beforeAll(() => {
  env = prepare();
});
afterAll(killAll);

async function finished(command: Running): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const [code] = await command.exited;
  return { code, ...command.output() };
}

/** Runs a command in this process. */
async function runHere(args: readonly string[]): Promise<{ code: number | undefined; stdout: string; stderr: string }> {
  const output = { stdout: '', stderr: '' };
  const spies = (['stdout', 'stderr'] as const).map((name) =>
    jest.spyOn(process[name], 'write').mockImplementation((text) => {
      output[name] += text as string;
      return true;
    }),
  );
  try {
    return { code: await run(args), ...output };
  } finally {
    for (const spy of spies) spy.mockRestore();
  }
}

function chat(url: string, content: string, extra: object = {}, init: RequestInit = {}): Promise<Response> {
  return fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ messages: [{ role: 'user', content }], ...extra }),
    ...init,
  });
}

/** Waits until the server refuses new connections after a signal. */
async function untilRefused(url: string): Promise<void> {
  while (
    await fetch(`${url}/health`, { headers: { Connection: 'close' } }).then(
      () => true,
      () => false,
    )
  )
    await new Promise((resolve) => setTimeout(resolve, 10));
}

describe('flags', () => {
  test.each([
    [['serve', '--max-modle-len', '1'], '(Did you mean --max-model-len?)'],
    [['run', '--modle'], "error: unknown option '--modle'\n(see capstan run --help)"],
    [['keys', 'create', '--nam'], '(see capstan keys create --help)'],
    [['srve'], "error: unknown command 'srve'\n(Did you mean serve?)"],
    [['serve', 'a', 'b', '--model', 'c'], '--model: expected either one model or the models, got both'],
    [['serve', '--port'], "error: option '--port <number>' argument missing"],
    [['serve', '--port', '99999'], "error: --port: expected a port from 0 to 65535, got '99999'"],
    [
      ['serve', '--max-model-len', '8kk'],
      "error: --max-model-len: expected a whole number of 1 or more, such as 8192 or 8K, got '8kk'",
    ],
    [['serve', '--kv-cache-memory', '-1G'], '--kv-cache-memory: expected a number of bytes'],
    [['serve', '--dtype', 'int8'], '--dtype: expected auto, f32'],
    [['serve', '--http-transport', 'nginx'], "error: --http-transport: expected auto, uws or node, got 'nginx'"],
    [
      ['serve', '--speculative-config', '{}'],
      `error: --speculative-config: expected num_speculative_tokens, such as {"method": "ngram", "num_speculative_tokens": 5}, got '{}'`,
    ],
    [['serve', '--config', '/no/such.yaml'], "error: --config: expected a readable file, got '/no/such.yaml' (ENOENT)"],
    [['serve', '--api-kee', `sk-cap1_0123456789AB_${'a'.repeat(32)}1GlQkh`], '(Did you mean --api-key?)'],
    [['serve', '--shutdown-timeout', 'soon'], '--shutdown-timeout: expected seconds from 0 to 86400'],
    [['serve', '--default-chat-template-kwargs', '[]'], 'expected a JSON object, such as {"enable_thinking": false}'],
  ])('%j is refused with 2 and the reason', async (args, message) => {
    const { code, stderr, stdout } = await runHere(args);
    expect(code).toBe(2);
    expect(stderr).toContain(message);
    expect(stdout).toBe('');
  });

  test.each([
    [['serve', '--prot', '1'], "error: unknown option '--prot'\n(Did you mean --port?)"],
    [
      ['serve', modelDir, '--port', '0', '--tool-call-parser', 'nope'],
      'error: --tool-call-parser: expected one of auto, ',
    ],
    [
      ['serve', modelDir, '--port', '0', '--chat-template', '{% bad'],
      'error: --chat-template: expected a Jinja template (',
    ],
  ])('%j exits with 2 and the reason', async (args, message) => {
    const { code, stderr, stdout } = await finished(start(args, env));
    expect(code).toBe(2);
    expect(stderr).toContain(message);
    expect(stdout).toBe('');
  });

  test('a server without keys loads no database library', () => {
    const script = `
      const { run } = require('./dist/server/cli/program.js');
      process.stdout.write = () => true;
      void run(['serve', '--help']).then(() => {
        require('./dist/server/inference/serve.js');
        console.error(Object.keys(require.cache).filter((file) => /node_modules.(kysely|pg|libsql|argon2)/.test(file)).length, Object.keys(require.cache).some((file) => /serve\.js$/.test(file)));
      });`;
    const { stderr } = spawnSync(process.execPath, ['-e', script], {
      cwd: join(__dirname, '../../..'),
      encoding: 'utf8',
    });
    expect(stderr).toBe('0 true\n');
  });

  test('--help and --version go to standard output and exit 0', async () => {
    const help = await finished(start(['serve', '--help'], env));
    expect([help.code, help.stderr]).toEqual([0, '']);
    for (const flag of [
      '--host',
      '--port',
      '--served-model-name',
      '--max-model-len',
      '--tensor-parallel-size',
      '--threads',
      '--dtype',
      '--kv-cache-memory',
      '--http-transport',
      '--shutdown-timeout',
    ])
      expect(help.stdout).toContain(flag);
    for (const group of [
      'Model:',
      'Engine:',
      'Sampling and responses:',
      'HTTP:',
      'Access keys:',
      'Limits:',
      'Logging and metrics:',
    ])
      expect(help.stdout).toContain(`\n${group}\n`);
    expect(help.stdout.indexOf('\nOptions:')).toBeGreaterThan(help.stdout.indexOf('\nLogging and metrics:'));
    const bench = await finished(start(['bench', 'offline', '--help'], env));
    expect(bench.stdout).toMatch(/number of requests \(default: 64\)\n/);
    expect((await finished(start(['--version'], env))).stdout).toMatch(/^\d+\.\d+\.\d+\n$/);
  });

  test('a model that cannot be loaded exits with 1 and one line', async () => {
    const { code, stderr } = await finished(start(['serve', '/no/such/model', '--port', '0'], env));
    expect([code, stderr]).toEqual([
      1,
      'error: model "/no/such/model": expected a path that exists, got none at /no/such/model\n',
    ]);
  });

  test('a missing addon is reported with the command that builds it', async () => {
    const { code, stderr } = await finished(
      start(['serve', modelDir, '--port', '0'], { CAPSTAN_ADDON: '/no/addon.node' }),
    );
    expect(code).toBe(1);
    expect(stderr).toMatch(/cannot be loaded on \S+-\S+.*\/no\/addon\.node does not exist[^]*npm run build:addon/);
  });

  test('a port in use exits with 1 before the model is loaded', async () => {
    const holder = createServer();
    await new Promise<void>((resolve) => {
      holder.listen(0, '127.0.0.1', resolve);
    });
    const { port } = holder.address() as { port: number };
    for (const transport of ['uws', 'node']) {
      const { code, stderr } = await finished(
        start(['serve', '/no/such/model', '--port', String(port), '--http-transport', transport], env),
      );
      expect([code, stderr]).toEqual([
        1,
        `error: cannot listen on 127.0.0.1:${port}: the port is in use. Choose another one with --port, or stop the process that uses it\n`,
      ]);
    }
    holder.close();
  });

  test('accepts aliases, underscores, equals signs and flags without effect', async () => {
    const server = await startServer(
      [
        '--model',
        modelDir,
        '--max_model_len=1K',
        '-tp',
        '2',
        '--served-model-name',
        'a',
        'b',
        '--trust-remote-code',
        '--gpu_memory_utilization=0.98',
        '--swap-space=4',
        '--disable-log-requests',
        '--enable-prefix-caching',
        '--threads',
        '3',
      ],
      env,
    );
    const models = (await (await fetch(`${server.url}/v1/models`)).json()) as {
      data: { id: string; max_model_len: number }[];
    };
    expect(models.data.map(({ id, max_model_len: length }) => [id, length])).toEqual([
      ['a', 1024],
      ['b', 1024],
    ]);
    const { stdout, stderr } = server.output();
    expect(stdout).toContain('serves a (');
    expect(stdout).toContain('3 threads, 2 ranks');
    expect(stderr.match(/"flag":"--[a-z-]+"/g)).toEqual(['"flag":"--trust-remote-code"', '"flag":"--swap-space"']);
    server.process.kill('SIGTERM');
    expect(await server.exited).toEqual([0, null]);
  });
});

describe('access keys', () => {
  const folder = mkdtempSync(join(tmpdir(), 'capstan-keys-'));
  const keysDb = join(folder, 'keys.db');
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  test('can be created and deleted while the server runs, and never appear in its output', async () => {
    const server = await startServer(
      [
        modelDir,
        '--access-control',
        '--keys-db',
        keysDb,
        '--deployment',
        'chat',
        '--admin-port',
        '0',
        '--open-path',
        '/version',
        '--log-level',
        'debug',
      ],
      env,
    );
    const status = async (path: string, key?: string): Promise<number> =>
      (await fetch(server.url + path, key === undefined ? {} : { headers: { Authorization: `Bearer ${key}` } })).status;
    expect(server.output().stdout).toContain('-H "Authorization: Bearer $API_KEY" ');
    expect(server.output().stderr).toContain('no access key exists');
    expect([await status('/v1/models'), await status('/health'), await status('/version')]).toEqual([401, 401, 200]);
    const admin = /without a key: (\S+)/.exec(server.output().stdout)![1];
    expect(
      await Promise.all(['/health', '/metrics', '/v1/models'].map(async (path) => (await fetch(admin + path)).status)),
    ).toEqual([200, 200, 404]);

    const created = await finished(
      start(['keys', 'create', '--name', 'ci', '--deployment', 'chat', '--keys-db', keysDb], env),
    );
    expect(created.code).toBe(0);
    const key = created.stdout.trim();
    const untilStatus = async (expected: number): Promise<void> => {
      for (let waited = 0; (await status('/v1/models', key)) !== expected; waited += 50) {
        if (waited > 60_000) throw new Error(`the status never became ${expected}`);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    };
    await untilStatus(200);
    const running = await chat(
      server.url,
      'forever',
      { stream: true },
      { headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${key}` } },
    );
    expect((await finished(start(['keys', 'delete', 'ci', '--yes', '--keys-db', keysDb], env))).code).toBe(0);
    await untilStatus(401);
    // The running request ends with an error event.
    expect(await running.text()).toMatch(/"code":"invalid_api_key"[^]*data: \[DONE\]\n\n$/);
    await fetch(`${server.url}/${key}?key=${key}`, { headers: { 'X-Request-Id': key } });
    server.process.kill('SIGTERM');
    expect(await server.exited).toEqual([0, null]);
    const { stdout, stderr } = server.output();
    expect(stderr).toContain('"path":"/v1/models","status":200');
    expect(stderr).toMatch(/"path":"\/v1\/chat\/completions","status":200,[^\n]*"key":"key_\w+"/);
    for (const part of [key, key.slice(21)]) expect(stdout + stderr).not.toContain(part);
  });

  test('fixed keys come from the environment, and a usage error does not show them', async () => {
    const server = await startServer([modelDir, '--disable-log-requests'], {
      ...env,
      CAPSTAN_API_KEY: 'first-fixed-key second-fixed-key',
    });
    const status = async (key: string): Promise<number> =>
      (await fetch(`${server.url}/v1/models`, { headers: { Authorization: `Bearer ${key}` } })).status;
    expect([
      await status('first-fixed-key'),
      await status('second-fixed-key'),
      await status('third-fixed-key'),
    ]).toEqual([200, 200, 401]);
    expect(server.output().stderr).not.toMatch(/fixed-key|"msg":"request"/);
    server.process.kill('SIGTERM');
    await server.exited;
    const { code, stderr } = await finished(start(['serve', '--api-key', 'ключ'], env));
    expect([code, stderr]).toEqual([
      2,
      'error: --api-key: expected 1 to 200 visible ASCII characters without spaces\n',
    ]);
  });
});

describe.each(['uws', 'node'])('TLS and Unix sockets over %s', (transport) => {
  const args = [modelDir, '--http-transport', transport];
  const tls = join(__dirname, '../../fakes/tls');
  const runCurl = (text: string, ...more: string[]): unknown =>
    JSON.parse(
      execFileSync('sh', ['-c', [/curl .*/.exec(text)![0], ...more].join(' ')], {
        encoding: 'utf8',
        stdio: ['ignore', 'pipe', 'ignore'],
      }),
    );

  test('serves TLS from a configuration file', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'capstan-config-'));
    const config = join(folder, 'capstan.yaml');
    writeFileSync(
      config,
      `ssl-keyfile: ${join(tls, 'locked-key.pem')}\nssl_certfile: ${join(tls, 'cert.pem')}\nssl-keyfile-password: open-sesame\nmax-num-seqs: 7\n`,
    );
    const server = start(['serve', ...args, '--port', '0', '--config', config], env);
    const text = await server.until('curl ');
    expect(text).toMatch(new RegExp(`https://127\\.0\\.0\\.1:\\d+ \\(${transport}\\)`));
    expect(runCurl(text, '--cacert', join(tls, 'cert.pem'))).toMatchObject({ choices: [{ finish_reason: 'stop' }] });
    server.process.kill('SIGTERM');
    expect(await server.exited).toEqual([0, null]);
    rmSync(folder, { recursive: true });
  });

  test('serves a Unix socket and removes it at the end', async () => {
    const folder = mkdtempSync(join(tmpdir(), "capstan-uds-it's-"));
    const path = join(folder, 's');
    const server = start(['serve', ...args, '--uds', path], env);
    const text = await server.until('curl ');
    expect(runCurl(text)).toMatchObject({ choices: [{ finish_reason: 'stop' }] });
    const second = await finished(start(['serve', ...args, '--uds', path], env));
    expect([second.code, second.stderr]).toEqual([
      1,
      `error: cannot listen on ${path}: another process listens on ${path}\n`,
    ]);
    server.process.kill('SIGTERM');
    expect(await server.exited).toEqual([0, null]);
    expect(existsSync(path)).toBe(false);
    rmSync(folder, { recursive: true });
  });

  test('a key that does not match the certificate exits with 2', async () => {
    const { code, stderr } = await finished(
      start(
        ['serve', ...args, '--ssl-keyfile', join(tls, 'other-key.pem'), '--ssl-certfile', join(tls, 'cert.pem')],
        env,
      ),
    );
    expect(code).toBe(2);
    expect(stderr).toMatch(
      /^error: --ssl-keyfile: expected the key of the certificate '.*cert\.pem', got '.*other-key\.pem'/,
    );
  });
});

describe('address', () => {
  test.each([
    [{}, [], '127.0.0.1', 8080],
    [{ PLATFORM_SERVING_PRODUCTION: '' }, [], '127.0.0.1', 8080],
    [{ PLATFORM_SERVING_PRODUCTION: '1' }, [], '0.0.0.0', 80],
    [
      { PLATFORM_SERVING_PRODUCTION: '1', PLATFORM_SERVING_HOST: '127.0.0.2', PLATFORM_SERVING_PORT: '9' },
      [],
      '127.0.0.2',
      9,
    ],
    [
      { PLATFORM_SERVING_PRODUCTION: '1', PLATFORM_SERVING_PORT: '9' },
      ['--port', '10', '--host', '127.0.0.3'],
      '127.0.0.3',
      10,
    ],
  ])('%j %j', (variables, args, host, port) => {
    const commandLine = new FlagValues();
    for (let i = 0; i < args.length; i += 2) commandLine.add(FLAG_NAMES.get(args[i])!, args[i + 1], args[i]);
    const options = resolveServeOptions([fromEnvironment(variables), commandLine], variables);
    expect([options.host, options.port]).toEqual([host, port]);
  });

  test('an invalid port in the environment is a usage error', async () => {
    const { code, stderr } = await finished(start(['serve'], { ...env, PLATFORM_SERVING_PORT: 'http' }));
    expect([code, stderr]).toEqual([2, "error: PLATFORM_SERVING_PORT: expected a port from 0 to 65535, got 'http'\n"]);
  });
});

describe.each(['uws', 'node'])('a server over %s', (transport) => {
  const args = [modelDir, '--http-transport', transport, '--served-model-name', "it's"];

  test('prints a summary line and a working curl command', async () => {
    const server = await startServer(args, env);
    const { stdout } = server.output();
    expect(stdout).toMatch(
      new RegExp(
        `^Capstan \\S+ serves it's \\(Qwen2ForCausalLM, 0\\.0 M parameters, f32\\): fake none, 1 thread, context length 4,096, KV cache 1 MiB \\(1,024 tokens\\), http://127\\.0\\.0\\.1:\\d+ \\(${transport}\\)\n`,
      ),
    );
    const response = execFileSync('sh', ['-c', /curl .*/.exec(stdout)![0]], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    expect(JSON.parse(response)).toMatchObject({
      model: "it's",
      choices: [{ message: { content: 'Hello from the fake engine. Größe 😀!' } }],
    });
    server.process.kill('SIGINT');
    expect(await server.exited).toEqual([0, null]);
  });

  test('finishes an open response after Ctrl-C, refuses new connections, and exits with 0', async () => {
    const server = await startServer(args, env);
    const file = join(temporaryFolder('cli'), 'refused');
    const running = await chat(server.url, `until ${file} exists`, { stream: true });
    server.process.kill('SIGINT');
    await untilRefused(server.url);
    expect(server.process.exitCode).toBeNull();
    writeFileSync(file, '');
    const text = await running.text();
    expect(text).toContain('"finish_reason":"stop"');
    expect(text).toMatch(/data: \[DONE\]\n\n$/);
    expect(await server.exited).toEqual([0, null]);
  });

  test('ends a response with an error event after the shutdown timeout', async () => {
    const server = await startServer([...args, '--shutdown-timeout', '0.2'], env);
    const running = await chat(server.url, 'forever', { stream: true });
    server.process.kill('SIGTERM');
    const text = await running.text();
    expect(text).toContain('"code":"shutting_down"');
    expect(text).toMatch(/data: \[DONE\]\n\n$/);
    expect(await server.exited).toEqual([0, null]);
  });

  test('does not wait for an incomplete body after the shutdown timeout', async () => {
    const server = await startServer([...args, '--shutdown-timeout', '0.2'], env);
    const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
    socket.on('error', () => {});
    socket.write('POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n');
    await once(socket, 'data');
    server.process.kill('SIGTERM');
    expect(await server.exited).toEqual([0, null]);
  });

  test('exits at once on the second Ctrl-C', async () => {
    const server = await startServer(args, env);
    const running = await chat(server.url, 'forever', { stream: true });
    const reading = running.text().catch(() => 'cut');
    server.process.kill('SIGINT');
    await untilRefused(server.url);
    expect(server.process.exitCode).toBeNull();
    server.process.kill('SIGINT');
    expect(await server.exited).toEqual([130, null]);
    expect(await reading).not.toContain('[DONE]');
  });
});
