/** The texts of the console in both languages. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { CONTAINER_STATES } from '../../../../server/platform/deployments/container-state';
import type { ReplicaState } from '../../../../server/platform/store/deployment-schema';
import { DEPLOYMENT_STATES } from '../../../../server/platform/deployments/deployment-state';
import { EVENT_GROUPS as GROUPS_OF_SERVICE, EVENT_TYPES } from '../../../../server/platform/webhooks/event-types';
import { ERROR_REASONS, VERSION_STATES } from '../../../../server/platform/deployments/version-state';
import en from '../../../../server/platform/console/i18n/en';
import { fill } from '../../../../server/platform/console/i18n/fill';
import zhCn from '../../../../server/platform/console/i18n/zh-cn';
import { EVENT_GROUPS } from '../../../../server/platform/console/pages/webhooks/event-selection';

const TABLES = { en, 'zh-CN': zhCn } as const;
const keys = Object.keys(en) as (keyof typeof en)[];

test('both languages have the same messages, and none is empty', () => {
  expect(Object.keys(zhCn).sort()).toEqual([...keys].sort());
  for (const table of Object.values(TABLES))
    expect(Object.entries(table).filter(([, words]) => words.trim() === '')).toEqual([]);
});

test('a message takes the same values in both languages', () => {
  const namesOf = (words: string) => [...new Set([...words.matchAll(/\{(\w+)\}/g)].map(([, name]) => name))].sort();
  expect(keys.filter((key) => namesOf(en[key]).join() !== namesOf(zhCn[key]).join())).toEqual([]);
});

test('translates every message except names and units', () => {
  // Names, units and terms of the API.
  const alike = keys.filter((key) => en[key] === zhCn[key]);
  expect(alike.sort()).toEqual(
    [
      'deployment.url',
      'field.id',
      'metrics.cpu',
      'metrics.p50',
      'metrics.p90',
      'metrics.p99',
      'data.gpu',
      'spec.cores',
      'test.body.json',
    ].sort(),
  );
  expect(keys.filter((key) => /\p{Script=Han}/u.test(en[key]))).toEqual([]);
});

/** Words that mean the same as a word of the console. */
const OTHER_WORDS = {
  账号: '账户',
  邮箱地址: '邮箱',
  恢复代码: '恢复码',
  第二验证方式: '两步验证',
  机密: '保密',
  词元: 'token',
  拉取: '下载',
  投递: '发送',
  缩容到: '缩容至',
  '修订版(?!本)': '修订版本',
};

test('Chinese texts use one word for one thing', () => {
  const folder = join(__dirname, '../../../../server/platform/console/i18n');
  const files = readdirSync(folder).filter((name) => name.startsWith('zh-cn'));
  const text = files.map((name) => readFileSync(join(folder, name), 'utf8')).join('\n');
  expect(files).toHaveLength(3);
  expect(Object.keys(OTHER_WORDS).filter((word) => new RegExp(word).test(text))).toEqual([]);
});

test('has the established label of every state', () => {
  for (const state of [...DEPLOYMENT_STATES, ...VERSION_STATES, ...CONTAINER_STATES])
    for (const table of Object.values(TABLES)) expect(table).toHaveProperty([`state.${state}`]);
  expect([
    zhCn['state.queued'],
    zhCn['state.preparing'],
    zhCn['state.starting'],
    zhCn['state.running'],
    zhCn['state.degraded'],
    zhCn['state.idle'],
    zhCn['state.backoff'],
    zhCn['state.stopping'],
    zhCn['state.stopped'],
    zhCn['state.error'],
  ]).toEqual([
    '排队中',
    '准备中',
    '启动中',
    '运行中',
    '降级',
    '已缩容至零',
    '重启等待',
    '正在关闭',
    '已关闭',
    '执行出错',
  ]);
});

test('has a text for every replica state', () => {
  for (const state of ['created', 'starting', 'ready', 'unready', 'exited', 'stopping'] satisfies ReplicaState[])
    for (const table of Object.values(TABLES)) expect(table).toHaveProperty([`replica.${state}`]);
});

test('has a text for every event, and offers every event group', () => {
  // Events of versions show the state that they lead to.
  const hasText = (type: string) =>
    Object.hasOwn(en, `event.${type}`) ||
    (type.startsWith('version.') && Object.hasOwn(en, `state.${type.slice('version.'.length)}`));
  expect(EVENT_TYPES.filter((type) => !hasText(type))).toEqual([]);
  expect(EVENT_GROUPS.map((group) => `${group}.*`).sort()).toEqual([...GROUPS_OF_SERVICE].sort());
});

test('has a meaning and a remedy for every reason', () => {
  for (const reason of ERROR_REASONS)
    for (const table of Object.values(TABLES))
      for (const key of [`reason.${reason}`, `reason.${reason}.help`]) expect(table).toHaveProperty([key]);
});

test('has no unused message', () => {
  const folder = join(__dirname, '../../../../server/platform/console');
  const source = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.tsx?$/.test(name) && !name.startsWith('i18n'))
    .map((name) => readFileSync(join(folder, name), 'utf8'))
    .join('\n');
  // Keys that are built at run time, such as `state.${state}`.
  const builtKeys = [...source.matchAll(/(?:t|lookUp)\(`([^`$]*)\$\{[^}]*\}([^`]*)`/g)].map(
    ([, start, end]) => new RegExp(`^${start.replaceAll('.', '\\.')}[^]*${end.replaceAll('.', '\\.')}$`),
  );
  expect(keys.filter((key) => !source.includes(`'${key}'`) && !builtKeys.some((pattern) => pattern.test(key)))).toEqual(
    [],
  );
});

test('fills in values, and chooses singular or plural', () => {
  expect(fill('{n} line|{n} lines', { n: 1 })).toBe('1 line');
  expect(fill('{n} line|{n} lines', { n: 0 })).toBe('0 lines');
  expect(fill('{n} 行', { n: 1 })).toBe('1 行');
  expect(fill('{name} of {constructor}', { name: '{n}' })).toBe('{n} of {constructor}');
});

test('keeps English sentences short', () => {
  const sentences = keys.flatMap((key) => en[key].split('|').flatMap((text) => text.split(/(?<=[.?!]) /)));
  expect(sentences.filter((sentence) => sentence.split(/\s+/).length > 20)).toEqual([]);
});
