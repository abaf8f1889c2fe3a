/** Checks the table of docs/reference/tool-calls.md against the code. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { REASONING_FORMATS } from '../../../ts/text/reasoning';
import { TOOL_CALL_FORMATS } from '../../../ts/text/tool-calls';

test.each([
  ['formats', TOOL_CALL_FORMATS],
  ['reasoning formats', REASONING_FORMATS],
])('the table of %s names each one and its aliases, in the order in which templates are matched', (title, formats) => {
  const page = readFileSync(join(__dirname, '../../../docs/reference/tool-calls.md'), 'utf8');
  const table = page.split(`<!-- ${title} -->`)[1].split('<!-- end -->')[0].trim().split('\n').slice(2);
  const named = table.map((line) =>
    line
      .split('|')
      .slice(1, 3)
      .map((cell) => [...cell.matchAll(/`([^`]+)`/g)].map(([, name]) => name)),
  );
  expect(named).toEqual(formats.map(({ name, aliases }) => [[name], [...aliases]]));
});
