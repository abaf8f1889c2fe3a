import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { EVENT_TYPES, wantsEvent } from '../../../server/service/event-types';

const server = join(__dirname, '../../../server');

/** Everything that the code writes down as an event, where its name is written out. */
function namesInCode(): string[] {
  const files = ['access', 'service'].flatMap((folder) =>
    readdirSync(join(server, folder)).map((name) => join(server, folder, name)),
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

test('every event that is written down can be asked for', () => {
  const names = [...new Set(namesInCode())];
  expect(names.length).toBeGreaterThan(30);
  expect(names.filter((name) => !EVENT_TYPES.includes(name))).toEqual([]);
});

test('a wish is for one type, for all of one object, or for everything', () => {
  expect(wantsEvent(['deployment.running'], 'deployment.running')).toBe(true);
  expect(wantsEvent(['deployment.running'], 'deployment.failed')).toBe(false);
  expect(wantsEvent(['deployment.*'], 'deployment.failed')).toBe(true);
  expect(wantsEvent(['deployment.*'], 'key.created')).toBe(false);
  expect(wantsEvent(['*'], 'key.created')).toBe(true);
});
