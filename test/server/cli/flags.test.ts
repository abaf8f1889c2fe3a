/** Flags from the command line, the environment and a configuration file, and their priority. */
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fromConfigFile } from '../../../server/cli/config-file';
import { fromEnvironment } from '../../../server/cli/environment';
import { UsageError } from '../../../server/base/usage-error';
import { SERVE_FLAGS } from '../../../server/cli/serve-flags';
import { FLAG_NAMES, FlagValues, isSwitch, resolveServeOptions } from '../../../server/cli/flag-sources';
import { needsKey } from '../../../server/inference/serve-access';
import { normalize } from '../../../server/cli/commands/serve';
import type { ServeOptions } from '../../../server/inference/serve-options';
import { VLLM_FLAGS } from '../../../server/cli/vllm-flags';
import { resolveEngineOptions } from '../../../ts/options';
import { REASONING_FORMATS } from '../../../ts/text/reasoning';
import { TOOL_CALL_FORMATS } from '../../../ts/text/tool-calls';

const folder = mkdtempSync(join(tmpdir(), 'capstan-flags-'));

/** Flags that are not in FLAG_NAMES: commander adds them, or they are read before the others. */
const OTHER_FLAGS = new Set(['--help', '--config']);

function file(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

/** Reads `--name=value`, or `--name` for a switch, as commander does. */
function commandLine(...args: string[]): FlagValues {
  const values = new FlagValues();
  for (const arg of normalize(args)) {
    const [name] = arg.split('=', 1);
    const flagName = FLAG_NAMES.get(name);
    if (flagName === undefined) throw new Error(`no such flag: ${name}`);
    values.add(flagName, isSwitch(flagName.flag) ? 'true' : arg.slice(name.length + 1), name);
  }
  return values;
}

function resolve(...args: string[]): ServeOptions {
  return resolveServeOptions([commandLine(...args)], {});
}

test.each([
  [{ CAPSTAN_KEYS_DB: 'v.db' }, ['--data-dir=/d'], '/d/capstan.db', '/d', undefined],
  [{ CAPSTAN_KEYS_DB: 'v.db' }, ['--data-dir=/d', '--api-key=k'], '/d/capstan.db', '/d', undefined],
  [{ CAPSTAN_KEYS_DB: 'v.db' }, ['--data-dir=/d', '--no-access-control'], '/d/capstan.db', '/d', false],
  [{ CAPSTAN_KEYS_DB: 'v.db' }, ['--data-dir=/d', '--keys-db=f.db'], 'f.db', '/d', undefined],
  [{ CAPSTAN_KEYS_DB: 'v.db', CAPSTAN_DATA_DIR: '/v' }, [], 'v.db', '/v', undefined],
  [{ CAPSTAN_DATA_DIR: '/v' }, ['--keys-db=f.db'], 'f.db', '/v', undefined],
])('with %j, %j names the same database as capstan keys', (env, args, keysDb, dataDir, accessControl) => {
  const options = resolveServeOptions([fromEnvironment(env), commandLine(...args)], {});
  expect([options.keysDb, options.dataDir, options.accessControl]).toEqual([keysDb, dataDir, accessControl]);
});

describe('a data directory', () => {
  const keys = mkdtempSync(join(tmpdir(), 'capstan-keys-'));
  writeFileSync(join(keys, 'capstan.db'), '');
  const NEEDS_ACCESS = '--data-dir: expected --access-control too: the directory contains the key database';
  const NEEDS_DATABASE = `--data-dir: expected no fixed keys (--api-key, CAPSTAN_API_KEY or VLLM_API_KEY), because they take the place of its key database. Use --keys-db ${keys}/capstan.db to accept keys of both`;

  test.each([
    [{}, [`--data-dir=${keys}`], NEEDS_ACCESS],
    [{}, [`--data-dir=${keys}`, '--api-key=k'], NEEDS_DATABASE],
    [{}, [`--data-dir=${keys}`, '--api-key=k', '--access-control'], NEEDS_DATABASE],
    [{ CAPSTAN_API_KEY: 'k' }, [`--data-dir=${keys}`], NEEDS_DATABASE],
    [{ CAPSTAN_DATA_DIR: '/v', CAPSTAN_API_KEY: 'k' }, [`--data-dir=${keys}`], NEEDS_DATABASE],
  ])('with %j, the keys in %j would have no effect, which is an error', (env, args, message) =>
    expect(() => resolveServeOptions([fromEnvironment(env), commandLine(...args)], {})).toThrow(
      new UsageError(message),
    ),
  );

  test.each([
    [{ CAPSTAN_DATA_DIR: '/v' }, []],
    [{ CAPSTAN_DATA_DIR: '/v' }, ['--api-key=k']],
    [{}, ['--data-dir=/d']],
    [{}, ['--data-dir=/d', '--api-key=k']],
    [{}, ['--data-dir=/d', '--access-control']],
    [{}, ['--data-dir=/d', '--no-access-control']],
    [{}, ['--data-dir=/d', '--keys-db=/k', '--api-key=k']],
  ])('with %j, %j is accepted: the directory is also that of batches and of capstan up', (env, args) =>
    expect(() => resolveServeOptions([fromEnvironment(env), commandLine(...args)], {})).not.toThrow(),
  );
});

describe('names', () => {
  test('are unique', () => {
    const names = [...SERVE_FLAGS, ...VLLM_FLAGS].flatMap((flag) => [
      `--${flag.name}`,
      ...(flag.aliases ?? []),
      ...(isSwitch(flag) ? [`--no-${flag.name}`] : []),
      ...('negations' in flag ? (flag.negations ?? []) : []),
    ]);
    expect(names.filter((name, i) => names.indexOf(name) !== i)).toEqual([]);
  });

  test('the help of the parsers lists every format', () => {
    const helpOf = (name: string) => SERVE_FLAGS.find((flag) => flag.name === name)!.help.split(/[^\w]+/);
    expect(helpOf('tool-call-parser')).toEqual(expect.arrayContaining(TOOL_CALL_FORMATS.map(({ name }) => name)));
    expect(helpOf('reasoning-parser')).toEqual(expect.arrayContaining(REASONING_FORMATS.map(({ name }) => name)));
  });

  test('include every flag of the specification', () => {
    const specified =
      `served-model-name host port gpu-memory-utilization max-model-len enable-prefix-caching no-enable-prefix-caching tensor-parallel-size trust-remote-code disable-log-requests
      enable-log-requests api-key dtype max-num-seqs max-num-batched-tokens block-size kv-cache-dtype quantization tokenizer tokenizer-mode chat-template chat-template-content-format enable-auto-tool-choice
      tool-call-parser exclude-tools-when-tool-choice-none reasoning-parser enable-reasoning generation-config override-generation-config max-logprobs enable-prompt-tokens-details enable-force-include-usage
      enforce-eager enable-chunked-prefill seed swap-space cpu-offload-gb kv-offloading-size pipeline-parallel-size data-parallel-size enable-lora speculative-config max-num-queued-reqs max-num-queued-tokens
      uvicorn-log-level disable-uvicorn-access-log disable-access-log-for-endpoints enable-request-id-headers root-path uds ssl-keyfile ssl-certfile allowed-origins allowed-methods allowed-headers
      allow-credentials disable-log-stats load-format revision download-dir scheduling-policy structured-outputs-config guided-decoding-backend http-transport sse-ping-interval-s health-stall-timeout-s
      prefix-cache-scope shutdown-timeout max-request-bytes`.split(/\s+/);
    expect(specified.filter((name) => !FLAG_NAMES.has(`--${name}`))).toEqual([]);
    expect(['-tp', '-q', '-pp', '-dp', '-O'].filter((name) => !FLAG_NAMES.has(name))).toEqual([]);
  });

  test('include every flag of vLLM 0.32, with or without a value as there', () => {
    const lines = readFileSync(join(__dirname, '../../oracle/vllm-0.32-flags.txt'), 'utf8')
      .trim()
      .split('\n')
      .filter((line) => !line.startsWith('#'))
      .map((line) => line.split(' '));
    expect(lines.length).toBeGreaterThan(300);
    const names = lines.flatMap((line) => line.slice(0, -1)).filter((name) => !OTHER_FLAGS.has(name));
    expect(names.filter((name) => !FLAG_NAMES.has(name))).toEqual([]);
    const mismatches = lines
      .filter(
        ([name, ...rest]) =>
          !OTHER_FLAGS.has(name) && isSwitch(FLAG_NAMES.get(name)!.flag) !== (rest.at(-1) === 'nothing'),
      )
      .map(([name]) => name);
    expect(mismatches).toEqual([]);
  });

  test.each([
    [['--max_model_len=8k'], ['--max-model-len=8k']],
    [
      ['-tp', '2'],
      ['--tensor-parallel-size', '2'],
    ],
    [['-tp=2'], ['--tensor-parallel-size=2']],
    [['-O3'], ['--optimization-level=3']],
    [['--enable-prefix-caching=false'], ['--no-enable-prefix-caching']],
    [['--no_enable_prefix_caching=False'], ['--enable-prefix-caching']],
    [['--compilation-config.level=3'], ['--compilation-config=3']],
    [['--unknown_one=a_b'], ['--unknown-one=a_b']],
    [
      ['model_a', '--', '-'],
      ['model_a', '--', '-'],
    ],
  ])('reads %j as %j', (args, read) => expect(normalize(args)).toEqual(read));
});

describe('values', () => {
  test.each<[string[], (options: ServeOptions) => unknown, unknown]>([
    [['--max-model-len=8k'], ({ engine }) => engine.maxModelLen, 8000],
    [['--max-model-len=8K'], ({ engine }) => engine.maxModelLen, 8192],
    [['--max-model-len=auto'], ({ engine }) => engine.maxModelLen, undefined],
    [['--kv-cache-memory-bytes=2GiB'], ({ engine }) => engine.kvCacheBytes, 2 ** 31],
    [['--grammar-cache-memory=16M'], ({ engine }) => engine.grammarCacheBytes, 2 ** 24],
    [
      ['-sc={"num_speculative_tokens": 4}'],
      ({ engine }) => engine.speculative,
      { method: 'ngram', numSpeculativeTokens: 4 },
    ],
    [
      [
        '--speculative-config={"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4, "prompt_lookup_min": 2}',
      ],
      ({ engine }) => resolveEngineOptions(engine).speculative,
      { numSpeculativeTokens: 8, promptLookupMax: 4, promptLookupMin: 2, fromGrammar: false },
    ],
    [
      ['-sc={"model": "org/small", "num_speculative_tokens": 4, "quantization": "int8"}'],
      ({ engine }) => engine.speculative,
      { method: 'draft_model', numSpeculativeTokens: 4, model: 'org/small', quantization: 'int8' },
    ],
    [
      ['-sc={"method": "draft_model", "model": "/m", "num_speculative_tokens": 4}'],
      ({ engine }) => resolveEngineOptions(engine).speculative,
      { numSpeculativeTokens: 4, promptLookupMax: 5, promptLookupMin: 5, fromGrammar: false },
    ],
    [
      ['-sc={"method": "qwen3_next_mtp", "num_speculative_tokens": 2}'],
      ({ engine }) => engine.speculative,
      { method: 'mtp', numSpeculativeTokens: 2 },
    ],
    [
      [
        '--lora-modules=sql=/a/sql',
        '--lora-modules={"name": "b", "path": "/b", "base_model_name": "x"}',
        '--max-loras=1',
      ],
      ({ engine }) => engine,
      { loraModules: { sql: '/a/sql', b: '/b' }, maxLoras: 2 },
    ],
    [
      ['--lora-modules=[{"name": "a", "path": "/a"}, {"name": "b", "path": "/b c"}]', '--lora-modules=c=/c'],
      ({ engine }) => engine.loraModules,
      { a: '/a', b: '/b c', c: '/c' },
    ],
    [['--lora-modules=sql=/a=b'], ({ engine }) => engine.loraModules, { sql: '/a=b' }],
    [
      ['--max-loras=2', '--max-cpu-loras=8', '--max-lora-rank=16'],
      ({ engine }) => engine,
      { maxLoras: 8, maxLoraRank: 16 },
    ],
    [['--lora-dir=/a', '--admin-port=0'], ({ engine, loraDir }) => [loraDir, engine.enableLora], ['/a', true]],
    [['-tp=auto', '--device=cuda:0,1'], ({ engine }) => resolveEngineOptions(engine).tensorParallelSize, 2],
    [['-tp=auto', '--device=cuda'], ({ engine }) => resolveEngineOptions(engine).tensorParallelSize, 1],
    [['-tp=4', '--tensor-parallel-size=auto'], ({ engine }) => resolveEngineOptions(engine).tensorParallelSize, 1],
    [['--keep-alive-timeout=5.5'], ({ keepAliveTimeoutMs }) => keepAliveTimeoutMs, 5500],
    [['--timeout-keep-alive=120'], ({ keepAliveTimeoutMs }) => keepAliveTimeoutMs, 120_000],
    [[], ({ keepAliveTimeoutMs }) => keepAliveTimeoutMs, 75_000],
    [['--max-num-queued-reqs=0'], ({ engine }) => engine.maxQueuedRequests, 0],
    [['--sse-keep-alive-interval=7'], ({ ssePingIntervalMs }) => ssePingIntervalMs, 7000],
    [['--sse-ping-interval-s=0'], ({ ssePingIntervalMs }) => ssePingIntervalMs, 2 ** 31 - 1],
    [['--no-disable-uvicorn-access-log'], ({ logsRequests }) => logsRequests, true],
    [['--no-enable-prefix-caching'], ({ engine }) => engine.prefixCache, false],
    [['--no-enable-prefix-caching', '--enable-prefix-caching'], ({ engine }) => engine.prefixCache, true],
    [['--prefix-cache-dir=kv'], ({ engine }) => engine.prefixCacheDir, 'kv'],
    [['--prefix-cache-disk-size=20G'], ({ engine }) => engine.prefixCacheDiskBytes, 20 * 2 ** 30],
    [['--port=1', '--port=2'], ({ port }) => port, 2],
    [['--served-model-name=a', '--served-model-name=b'], ({ servedNames }) => servedNames, ['a', 'b']],
    [
      ['--served-model-name=a', '--served-model-name=b', '--served-model-name=a'],
      ({ servedNames }) => servedNames,
      ['a', 'b'],
    ],
    [['--host=[::1]'], ({ host }) => host, '::1'],
    [['--disable-log-requests'], ({ logsRequests }) => logsRequests, false],
    [['--disable-uvicorn-access-log'], ({ logsRequests }) => logsRequests, false],
    [['--no-enable-log-requests'], ({ logsRequests }) => logsRequests, false],
    [['--uvicorn-log-level=critical'], ({ logLevel }) => logLevel, 'error'],
    [
      ['--disable-access-log-for-endpoints=/health, /metrics'],
      ({ unloggedPaths }) => unloggedPaths,
      ['/health', '/metrics'],
    ],
    [
      ['--allowed-origins=["https://a.example","https://b.example"]'],
      ({ cors }) => cors.origins,
      ['https://a.example', 'https://b.example'],
    ],
    [
      ['--allowed-origins=https://a.example', '--allowed-origins=https://b.example'],
      ({ cors }) => cors.origins,
      ['https://a.example', 'https://b.example'],
    ],
    [[], ({ cors }) => [cors.origins, cors.methods, cors.headers, cors.credentials], [['*'], ['*'], ['*'], false]],
    [['--root-path=/llm/'], ({ rootPath }) => rootPath, '/llm'],
    [['--max-logprobs=-1'], ({ settings }) => settings.maxLogprobs, -1],
    [['--enable-force-include-usage'], ({ settings }) => settings.forceIncludeUsage, true],
    [['--generation-config=vllm'], ({ engine }) => engine.generationConfig, 'none'],
    [
      ['--override-generation-config={"temperature": 0.5, "top_k": 3}'],
      ({ engine }) => engine.generationConfigOverrides,
      { temperature: 0.5, topK: 3 },
    ],
    [['--max-num-queued-tokens=1k'], ({ engine }) => engine.maxQueuedTokens, 1000],
    [
      ['--tool-call-parser=hermes', '--enable-auto-tool-choice'],
      ({ engine, ignored }) => [engine.toolCallFormat, ignored],
      ['hermes', []],
    ],
    [['--chat-template={{ messages }}'], ({ engine }) => engine.chatTemplate, '{{ messages }}'],
    [['--api-key=a', '--api-key=b'], (options) => [options.apiKeys, needsKey(options)], [['a', 'b'], true]],
    [['--keys-db=k.db'], needsKey, true],
    [['--keys-db=k.db', '--no-access-control'], needsKey, false],
    [['--access-control'], needsKey, true],
    [[], needsKey, false],
    [['--metrics-compat=vllm'], ({ metricsCompat }) => metricsCompat, 'vllm'],
  ])('%j', (args, read, expected) => expect(read(resolve(...args))).toEqual(expected));

  test('reads a generation config from a file or a directory, and ignores fields that are not sampling defaults', () => {
    const path = file('generation_config.json', '{"temperature": 0.3, "top_p": 0.9, "eos_token_id": 1, "top_k": null}');
    for (const source of [path, folder]) {
      const { engine } = resolve(`--generation-config=${source}`, '--override-generation-config={"top_p": 0.5}');
      expect([engine.generationConfig, engine.generationConfigOverrides]).toEqual([
        'none',
        { temperature: 0.3, topP: 0.5 },
      ]);
    }
  });

  test('accepts 8 bits for the KV cache, but not for the weights', () => {
    expect(resolve('--task=embed').engine.task).toBe('embed');
    expect(resolve('--task=embedding').engine.task).toBe('embed');
    expect(resolve('--task=auto').engine.task).toBe('auto');
    expect(resolve('--kv-cache-dtype=fp8').engine.kvCacheDtype).toBe('fp8');
    expect(resolve('--kv-cache-dtype=fp8_e4m3').engine.kvCacheDtype).toBe('fp8');
    expect(resolve('--kv-cache-dtype=half').engine.kvCacheDtype).toBe('f16');
    expect(resolve('--kv-cache-dtype=int8').engine.kvCacheDtype).toBe('int8');
    expect(resolve('--kv-cache-dtype=int8_per_token_head').engine.kvCacheDtype).toBe('int8');
    expect(() => resolve('--dtype=fp8')).toThrow('--dtype: expected auto, f32');
  });

  test('takes formats to quantize the weights to', () => {
    expect(resolve('--quantization=int4').engine.quantization).toBe('int4');
    expect(resolve('-q=int8').engine.quantization).toBe('int8');
    expect(resolve('--quantization=None').engine.quantization).toBe('none');
    expect(() => resolve('--quantization=awq')).toThrow("--quantization: expected none, int8 or int4, got 'awq'");
  });

  test('reads a chat template from a file', () => {
    expect(resolve(`--chat-template=${file('t.jinja', 'hello')}`).engine.chatTemplate).toBe('hello');
  });

  test.each([
    [['--port=x'], "--port: expected a port from 0 to 65535, got 'x'"],
    [['--task=classify'], '--task: expected auto, generate, embed or score'],
    [['--runner=pooling'], '--task embed'],
    [['--pooler-config={}'], "as the model's files say"],
    [['--dtype=int8'], '--dtype: expected auto, f32'],
    [['--kv-cache-dtype=fp8_e5m2'], "bf16, bfloat16, int8, int8_per_token_head, fp8 or fp8_e4m3, got 'fp8_e5m2'"],
    [['--max-logprobs=-2'], "--max-logprobs: expected a whole number of -1 or more, got '-2'"],
    [
      ['--override-generation-config=[1]'],
      '--override-generation-config: expected a JSON object, such as {"temperature": 0.7}, got \'[1]\'',
    ],
    [
      ['--override-generation-config={"max_new_tokens": 5}'],
      "--override-generation-config: expected temperature, top_p, top_k or repetition_penalty, got 'max_new_tokens'",
    ],
    [
      ['--override-generation-config={"top_k": "3"}'],
      '--override-generation-config: top_k: expected a number, got "3"',
    ],
    [['--chat-template=/no/such.jinja'], "--chat-template: expected a readable file, got '/no/such.jinja' (ENOENT)"],
    [
      ['--lora-modules=sql'],
      '--lora-modules: expected an adapter such as sql=/models/sql or {"name": "sql", "path": "/models/sql"}, got \'sql\'',
    ],
    [['--lora-modules==/a'], '--lora-modules: expected an adapter such as sql=/models/sql'],
    [['--lora-modules={"name": "a"}'], '--lora-modules: expected an adapter such as sql=/models/sql'],
    [
      ['--lora-modules=[{"name": "a", "path": "/a"}, 3]'],
      '--lora-modules: expected an adapter such as sql=/models/sql',
    ],
    [['--lora-modules=[null]'], '--lora-modules: expected an adapter such as sql=/models/sql'],
    [['--lora-modules={"name": "a"'], '--lora-modules: expected an adapter such as sql=/models/sql'],
    [
      ['--served-model-name=base', '--served-model-name=sql', '--lora-modules=sql=/a'],
      "--lora-modules: expected names that the model does not have, got 'sql'",
    ],
    [['--lora-modules=a=/a', '--lora-modules=a=/b'], "--lora-modules: expected each name once, got 'a' twice"],
    [['--lora-modules=a=/a', '--no-enable-lora'], '--lora-modules: expected --enable-lora, got --no-enable-lora'],
    [['--lora-dir=/a'], '--lora-dir: expected --admin-port too'],
    [['-sc=[]'], 'expected a JSON object, such as {"method": "ngram", "num_speculative_tokens": 5}, got \'[]\''],
    [
      ['-sc={"method": "eagle", "model": "m", "num_speculative_tokens": 2}'],
      "speculative method 'eagle' is not supported; expected 'ngram', 'grammar', 'draft_model' or 'mtp'",
    ],
    [['-sc={"method": "draft_model", "num_speculative_tokens": 2}'], 'model: expected the draft model, got none'],
    [['-sc={"model": 7, "num_speculative_tokens": 2}'], 'model: expected the draft model, got 7'],
    [
      ['-sc={"method": "ngram", "model": "m", "num_speculative_tokens": 2}'],
      "model: only for the method 'draft_model', got 'ngram'",
    ],
    [
      ['-sc={"model": "m", "num_speculative_tokens": 2, "quantization": "fp8"}'],
      'quantization: expected "none", "int8" or "int4", got "fp8"',
    ],
    [['-sc={"method": 3}'], 'method: expected "ngram", "grammar", "draft_model" or "mtp", got 3'],
    [['-sc={"num_speculative_tokens": 0}'], 'num_speculative_tokens: expected a whole number from 1 to 64, got 0'],
    [
      ['-sc={"num_speculative_tokens": 2, "prompt_lookup_max": 3, "prompt_lookup_min": 4}'],
      'prompt_lookup_min: expected a whole number from 1 to 3, got 4',
    ],
    [
      ['-sc={"method": "deepseek_mtp", "num_speculative_tokens": 2}'],
      "speculative method 'deepseek_mtp' is not supported; expected 'ngram', 'grammar', 'draft_model' or 'mtp'",
    ],
    [
      ['-sc={"method": "mtp", "num_speculative_tokens": 2, "prompt_lookup_max": 3}'],
      "prompt_lookup_max: only for the method 'ngram', got 'mtp'",
    ],
    [
      ['-sc={"num_speculative_tokens": 2, "draft_tensor_parallel_size": 1}'],
      "expected the fields method, num_speculative_tokens, model, quantization, prompt_lookup_max, prompt_lookup_min, got 'draft_tensor_parallel_size'",
    ],
    [['--spec-tokens=3'], '--spec-tokens: not supported: set --speculative-config instead'],
    [['--ssl-keyfile=k'], '--ssl-keyfile and --ssl-certfile: expected both, got one'],
    [['--ssl-keyfile-password=p'], '--ssl-keyfile-password: expected --ssl-keyfile and --ssl-certfile too'],
    [['--admin-host=::1'], '--admin-host: expected --admin-port too'],
    [['--api-key=a', '--no-access-control'], '--api-key: expected access control to be on, got --no-access-control'],
    [['--open-path=health'], "--open-path: expected a path such as /health, got 'health'"],
    [['--trust-request-chat-template'], '--trust-request-chat-template: chat templates in requests are not supported'],
  ])('refuses %j', (args, message) => {
    expect(() => resolve(...args)).toThrow(UsageError);
    expect(() => resolve(...args)).toThrow(message);
  });
});

describe("vLLM's other flags", () => {
  test('those without effect are accepted and listed', () => {
    expect(
      resolve(
        '--trust-remote-code',
        '--cpu-offload-gb=0',
        '--swap-space=4',
        '-O3',
        '--no-enable-chunked-prefill',
      ).ignored.sort(),
    ).toEqual([
      '--cpu-offload-gb',
      '--no-enable-chunked-prefill',
      '--optimization-level',
      '--swap-space',
      '--trust-remote-code',
    ]);
  });

  test.each(VLLM_FLAGS.filter(({ refusal }) => refusal !== undefined).map((flag) => [flag.name, flag] as const))(
    '--%s is refused unless its value has no effect',
    (name, { takes, refusal, harmless = [] }) => {
      const withValue = (value: string): FlagValues =>
        commandLine(takes === 'nothing' ? `--${name}` : `--${name}=${value}`);
      expect(() => resolveServeOptions([withValue('something')], {})).toThrow(`--${name}: not supported: ${refusal}`);
      for (const value of harmless) expect(resolveServeOptions([withValue(value)], {}).ignored).toEqual([]);
      if (takes === 'nothing') expect(() => resolve(`--no-${name}`)).not.toThrow();
    },
  );
});

describe('the environment', () => {
  const fromEnv = (env: NodeJS.ProcessEnv, ...args: string[]): ServeOptions =>
    resolveServeOptions([fromEnvironment(env), commandLine(...args)], env);

  test.each<[NodeJS.ProcessEnv, (options: ServeOptions) => unknown, unknown]>([
    [{ CAPSTAN_MAX_MODEL_LEN: '8K' }, ({ engine }) => engine.maxModelLen, 8192],
    [{ CAPSTAN_ENABLE_PREFIX_CACHING: '0' }, ({ engine }) => engine.prefixCache, false],
    [{ CAPSTAN_DISABLE_LOG_REQUESTS: 'true' }, ({ logsRequests }) => logsRequests, false],
    [{ CAPSTAN_SERVED_MODEL_NAME: 'a, b' }, ({ servedNames }) => servedNames, ['a', 'b']],
    [{ CAPSTAN_API_KEY: 'a,b c' }, ({ apiKeys }) => apiKeys, ['a,b', 'c']],
    [{ CAPSTAN_API_KEY: '{"a b' }, ({ apiKeys }) => apiKeys, ['{"a', 'b']],
    [{ CAPSTAN_LORA_MODULES: 'a=/a b=/b' }, ({ engine }) => engine.loraModules, { a: '/a', b: '/b' }],
    [{ CAPSTAN_LORA_MODULES: '{"name": "a", "path": "/a b"}' }, ({ engine }) => engine.loraModules, { a: '/a b' }],
    [
      { CAPSTAN_LORA_MODULES: '[{"name": "a", "path": "/a"}, {"name": "b", "path": "/b"}]' },
      ({ engine }) => engine.loraModules,
      { a: '/a', b: '/b' },
    ],
    [{ VLLM_API_KEY: 'v' }, ({ apiKeys }) => apiKeys, ['v']],
    [{ CAPSTAN_PORT: '' }, ({ port }) => port, 8080],
    [{ CAPSTAN_PORT: 'tcp://10.0.0.1:80' }, ({ port }) => port, 8080],
    [{ CAPSTAN_PORT: '1', PLATFORM_SERVING_PORT: '2' }, ({ port }) => port, 1],
    [{ CAPSTAN_TRUST_REMOTE_CODE: '1' }, ({ ignored }) => ignored, ['CAPSTAN_TRUST_REMOTE_CODE']],
    [{ CAPSTAN_ADDON: '/x', CAPSTAN_UNKNOWN: '1' }, ({ ignored }) => ignored, []],
  ])('%j', (env, read, expected) => expect(read(fromEnv(env))).toEqual(expected));

  test('has a variable for every flag', () => {
    for (const flag of SERVE_FLAGS) {
      const values = fromEnvironment({
        [`CAPSTAN_${flag.name.replaceAll('-', '_').toUpperCase()}`]: isSwitch(flag) ? 'true' : '1',
      });
      expect([...values.entries().keys()]).toEqual([flag]);
    }
  });

  test('an error names the variable', () => {
    expect(() => fromEnv({ CAPSTAN_MAX_NUM_SEQS: 'many' })).toThrow(
      "CAPSTAN_MAX_NUM_SEQS: expected a whole number of 1 or more, such as 8192 or 8K, got 'many'",
    );
    expect(() => fromEnv({ CAPSTAN_PIN_THREADS: 'maybe' })).toThrow(
      "CAPSTAN_PIN_THREADS: expected true or false, got 'maybe'",
    );
  });
});

describe('a configuration file', () => {
  const fromFile = (text: string): ServeOptions =>
    resolveServeOptions([fromConfigFile(file('config.yaml', text), '--config')], {});

  test('sets flags by name with YAML values', () => {
    const options = fromFile(
      'model: /m\nmax_model_len: 8k\nport: 9000\nenable-prefix-caching: false\nserved-model-name: [a, b]\noverride-generation-config:\n  temperature: 0.5\ntrust-remote-code: true\n# nothing\nhost:\n',
    );
    expect([options.model, options.engine, options.port, options.servedNames, options.ignored, options.host]).toEqual([
      '/m',
      { maxModelLen: 8000, prefixCache: false, generationConfigOverrides: { temperature: 0.5 } },
      9000,
      ['a', 'b'],
      ['config.yaml: trust-remote-code'],
      '127.0.0.1',
    ]);
  });

  test('may be empty', () => expect(fromFile('').port).toBe(8080));

  test.each([
    ['max-modle-len: 1', 'config.yaml: max-modle-len: unknown setting; did you mean max-model-len?'],
    ['port: high', "config.yaml: port: expected a port from 0 to 65535, got 'high'"],
    ['port: [1, 2]', 'config.yaml: port: expected one value, got a list'],
    ['port: true', 'config.yaml: port: expected a value, got true'],
    ['pin-threads: "yes please"', 'config.yaml: pin-threads: expected true or false, got "yes please"'],
    ['- a', 'config.yaml: expected settings, one per line as "port: 8080", got a list'],
    ['a: b: c', 'config.yaml: expected YAML: '],
    ['port: 1\nport: 2', 'config.yaml: expected YAML: Map keys must be unique'],
    [
      'speculative-config: {method: x}',
      "config.yaml: speculative-config: speculative method 'x' is not supported; expected 'ngram', 'grammar', 'draft_model' or 'mtp'",
    ],
  ])('refuses %j', (text, message) => {
    expect(() => fromFile(text)).toThrow(UsageError);
    expect(() => fromFile(text)).toThrow(message);
  });

  test('is overridden by the environment, and both by the command line', () => {
    const config = fromConfigFile(
      file('all.yaml', 'port: 1\nhost: 127.0.0.9\nserved-model-name: [file]\nmax-num-seqs: 3'),
      '--config',
    );
    const env = { CAPSTAN_PORT: '2', CAPSTAN_SERVED_MODEL_NAME: 'env', PLATFORM_SERVING_HOST: '127.0.0.8' };
    const options = resolveServeOptions([config, fromEnvironment(env), commandLine('--served-model-name=line')], env);
    expect([options.port, options.host, options.servedNames, options.engine.maxNumSeqs]).toEqual([
      2,
      '127.0.0.8',
      ['line'],
      3,
    ]);
  });
});
