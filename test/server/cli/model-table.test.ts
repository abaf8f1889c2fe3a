/** Several models on the command line and in the configuration file. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fromConfigFile } from '../../../server/cli/config-file';
import { FLAG_NAMES, FlagValues, resolveServeOptions } from '../../../server/cli/flag-sources';
import type { ServeOptions } from '../../../server/inference/serve-options';
import { temporaryFolder } from '../../fakes/temporary-folder';

function resolve(flags: Record<string, string>, config?: string): ServeOptions {
  const values = new FlagValues();
  for (const [name, value] of Object.entries(flags)) values.add(FLAG_NAMES.get(`--${name}`)!, value, `--${name}`);
  if (config === undefined) return resolveServeOptions([values], {});
  const file = join(temporaryFolder('config'), 'config.yaml');
  writeFileSync(file, config);
  return resolveServeOptions([fromConfigFile(file, '--config'), values], {});
}
const messageOf = (run: () => unknown): string => {
  try {
    run();
    return 'ok';
  } catch (error) {
    return (error as Error).message;
  }
};

test('a table gives each model its options, and flags are the defaults', () => {
  const { models, modelLimits, aliases } = resolve(
    { 'models-memory': '2G', 'sleep-idle-seconds': '60', alias: 'fast=chat' },
    `max-model-len: 4K
threads: 2
models-max: 2
model-wait-timeout: 30
models:
  chat:
    model: /models/chat
    max_model_len: 8K
    quantization: int8
    aliases: [gpt, small]
    pinned: true
    lora-modules: [sql=/adapters/sql]
    override-generation-config: {temperature: 0.5}
    default-chat-template-kwargs: {enable_thinking: false}
  embed:
    model: org/embed
    task: embed
    preload: true
    enable-prefix-caching: false
    max-num-queued-reqs: 5
`,
  );
  expect(models).toEqual([
    {
      model: '/models/chat',
      name: 'chat',
      aliases: ['gpt', 'small'],
      isPreloaded: false,
      isPinned: true,
      engine: {
        threads: 2,
        maxModelLen: 8192,
        quantization: 'int8',
        loraModules: { sql: '/adapters/sql' },
        generationConfigOverrides: { temperature: 0.5 },
      },
      settings: expect.objectContaining({ templateKwargs: { enable_thinking: false } }) as unknown,
    },
    {
      model: 'org/embed',
      name: 'embed',
      aliases: [],
      isPreloaded: true,
      isPinned: false,
      engine: { threads: 2, maxModelLen: 4096, task: 'embed', prefixCache: false, maxQueuedRequests: 5 },
      settings: expect.objectContaining({ templateKwargs: {} }) as unknown,
    },
  ]);
  expect([modelLimits, aliases]).toEqual([
    { memoryBytes: 2 * 2 ** 30, maxLoaded: 2, idleMs: 60_000, waitTimeoutMs: 30_000 },
    [{ name: 'fast', target: 'chat' }],
  ]);
});

test('a list names models after their files', () => {
  const { models } = resolve({ models: '[{"model": "a.gguf"}, {"model": "b", "name": "bee"}]' });
  expect(models.map(({ model, name }) => [model, name])).toEqual([
    ['a.gguf', undefined],
    ['b', 'bee'],
  ]);
});

test('one model has no table', () => {
  const { models, aliases, modelLimits } = resolve({ model: 'demo', alias: 'x' });
  expect([models, aliases, modelLimits.idleMs]).toEqual([[], [{ name: 'x', target: undefined }], Infinity]);
});

test.each<[Record<string, string>, string]>([
  [{ models: 'a' }, `--models: expected JSON, for example {"chat": {"model": "DIR"}}, got 'a'`],
  [{ models: '5' }, '--models: expected settings such as {"model": "DIR"}, got 5'],
  [{ models: '{}' }, '--models: expected 1 to 64 models, got 0'],
  [{ models: '{"a": {}}' }, '--models.a.model: expected a model, but it is missing'],
  [{ models: '{"a": "demo"}' }, '--models.a: expected settings such as {"model": "DIR"}, got "demo"'],
  [{ models: '[{"model": "a", "name": 5}]' }, '--models[0].name: expected a name, got 5'],
  [{ models: '{"a": {"model": "x", "name": "b"}}' }, "--models.a.name: expected no name here: it is 'a'"],
  [{ models: '{"a": {"model": "x", "port": 80}}' }, '--models.a.port: unknown setting of a model'],
  [{ models: '{"a": {"model": "x", "quantisation": "int8"}}' }, '; did you mean quantization?'],
  [{ models: '{"a": {"model": "x", "pinned": 1}}' }, '--models.a.pinned: expected true or false, got 1'],
  [{ models: '{"a": {"model": "x", "aliases": [1]}}' }, '--models.a.aliases: expected names, got 1'],
  [{ models: '{"a": {"model": "x", "task": "draw"}}' }, '--models.a.task: expected'],
  [{ models: '{"a": {"model": "x"}}', model: 'demo' }, '--model: expected either one model or --models, got both'],
  [
    { models: '{"a": {"model": "x"}}', 'served-model-name': 'b' },
    '--served-model-name: expected one model. Use --alias NAME=MODEL with several',
  ],
  [
    { models: '{"a": {"model": "x"}}', 'lora-modules': 'sql=/a' },
    '--lora-modules: expected one model. Put lora-modules into an entry of --models',
  ],
])('refuses %j', (flags, message) => {
  expect(messageOf(() => resolve(flags))).toContain(message);
});
