import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { draw, plots } from '../../../benchmarks/plots';

const images = join(__dirname, '../../../docs/images');
const files = plots().map(({ file }) => file);

test.each(plots())('docs/images/$file shows the figures of $source (draw it with benchmarks/plots.ts)', (plot) => {
  expect(readFileSync(join(images, plot.file), 'utf8')).toBe(draw(plot));
});

test('the page about benchmarks shows every plot', () => {
  const page = readFileSync(join(__dirname, '../../../docs/benchmarks.md'), 'utf8');
  const shown = [...page.matchAll(/!\[[^\]]+\]\(images\/([^)]+)\)/g)].map(([, file]) => file);
  expect(shown.sort()).toEqual([...files].sort());
  expect(readdirSync(images)).toEqual(expect.arrayContaining(files));
});
