import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { EVENT_TYPES, matchesEvent } from '../../../../server/platform/webhooks/event-types';

const server = join(__dirname, '../../../../server');

/** Returns the event types that appear as literals in the sources. */
function namesInCode(): string[] {
  const files = ['access', 'platform'].flatMap((folder) =>
    readdirSync(join(server, folder), { recursive: true, encoding: 'utf8' })
      .filter((name) => /^(?!console\/).*\.ts$/.test(name))
      .map((name) => join(server, folder, name)),
  );
  return files
    .filter((file) => !file.endsWith('event-types.ts'))
    .flatMap((file) =>
      [
        ...readFileSync(file, 'utf8').matchAll(
          /(?:action|type): (?:[^'`{},]*\? )?'([a-z]+\.[a-z_]+)'(?: : '([a-z]+\.[a-z_]+)')?|changeKey\([^)]*?'(key\.[a-z_]+)'/g,
        ),
      ].flatMap((match) => match.slice(1)),
    )
    .filter((name) => name !== undefined && name !== 'webhook.test');
}

test('knows every event type in the sources', () => {
  const names = [...new Set(namesInCode())];
  expect(names.length).toBeGreaterThan(30);
  expect(names.filter((name) => !EVENT_TYPES.includes(name))).toEqual([]);
});

test('matches by type, by group, or everything', () => {
  expect(matchesEvent(['deployment.running'], 'deployment.running')).toBe(true);
  expect(matchesEvent(['deployment.running'], 'deployment.failed')).toBe(false);
  expect(matchesEvent(['deployment.*'], 'deployment.failed')).toBe(true);
  expect(matchesEvent(['deployment.*'], 'key.created')).toBe(false);
  expect(matchesEvent(['*'], 'key.created')).toBe(true);
});
