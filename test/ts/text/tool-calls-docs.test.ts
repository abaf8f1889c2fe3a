/** Checks the table of docs/reference/tool-calls.md against the code. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { TOOL_CALL_FORMATS } from '../../../ts/text/tool-calls';

test('the table names every format and its aliases, in the order in which templates are matched', () => {
  const page = readFileSync(join(__dirname, '../../../docs/reference/tool-calls.md'), 'utf8');
  const table = page.split('<!-- formats -->')[1].split('<!-- end -->')[0].trim().split('\n').slice(2);
  const named = table.map((line) =>
    line
      .split('|')
      .slice(1, 3)
      .map((cell) => [...cell.matchAll(/`([^`]+)`/g)].map(([, name]) => name)),
  );
  expect(named).toEqual(TOOL_CALL_FORMATS.map(({ name, aliases }) => [[name], [...aliases]]));
});
