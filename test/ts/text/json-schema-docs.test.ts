/** Checks the tables of docs/reference/structured-output.md against the code. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { FORMATS } from '../../../ts/text/json-formats';
import { schemaToGrammar } from '../../../ts/text/json-schema';
import { KEYWORDS } from '../../../ts/text/schema-keywords';

const page = readFileSync(join(__dirname, '../../../docs/reference/structured-output.md'), 'utf8');

/** Returns the rows of a table without its header. Only ` | ` separates cells, so code spans may contain a bar. */
function rows(name: string): string[][] {
  const table = page.split(`<!-- ${name} -->`)[1].split('<!-- end -->')[0];
  return table
    .trim()
    .split('\n')
    .slice(2)
    .map((line) =>
      line
        .split(/ \| |^\| | \|$/)
        .map((cell) => cell.trim())
        .filter((_cell, i) => i > 0),
    );
}

const code = (cell: string): string => /^`(.*)`$/.exec(cell)![1];

test.each(rows('supported'))('%s is supported', (keyword, example) => {
  const schema = JSON.parse(code(example)) as object;
  expect(Object.keys(schema)).toContain(code(keyword));
  expect(schemaToGrammar(schema).rules.length).toBeGreaterThan(0);
});

test.each(rows('refused'))('%s is refused', (schema, message) => {
  expect(() => schemaToGrammar(JSON.parse(code(schema)))).toThrow(code(message));
});

test('the page names all formats and keywords', () => {
  const [, , limits] = rows('supported').find(([keyword]) => keyword === '`format`')!;
  expect(limits).toContain([...FORMATS.keys()].join(', '));
  const named = rows('supported').map(([keyword]) => code(keyword));
  expect(
    Object.values(KEYWORDS)
      .flat()
      .filter((keyword) => !named.includes(keyword)),
  ).toEqual([]);
});
