/**
 * Draws docs/images/*.svg from the tables of benchmarks/results. Run it after a table has changed:
 *
 *     node -r ./test/oracle/register-ts.cjs benchmarks/plots.ts
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const root = join(__dirname, '..');

interface Bar {
  label: string;
  value: number;
  /** The range of the rounds. */
  range?: [min: number, max: number];
}

interface Group {
  title: string;
  bars: readonly Bar[];
}

interface Plot {
  /** File in docs/images. */
  file: string;
  title: string;
  /** The page of results that holds the figures. */
  source: string;
  unit: string;
  groups: readonly Group[];
}

const COLOURS = ['#8c96a5', '#c9a15a', '#2f6fde'];
const WIDTH = 720;
const LABEL_WIDTH = 130;
const VALUE_WIDTH = 70;
const BAR_HEIGHT = 16;
const GROUP_GAP = 14;
const HEAD = 46;
const FOOT = 28;

/** The rows of the first table of a page whose header has all of `columns`. */
export function tableOf(page: string, columns: readonly string[]): Record<string, string>[] {
  const lines = readFileSync(join(root, 'benchmarks/results', page), 'utf8').split('\n');
  const cells = (line: string) =>
    line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim());
  const begin = lines.findIndex((line) => line.startsWith('|') && columns.every((name) => cells(line).includes(name)));
  if (begin < 0) throw new Error(`${page}: expected a table with the columns ${columns.join(', ')}`);
  const names = cells(lines[begin]);
  const rows = lines.slice(begin + 2);
  const end = rows.findIndex((line) => !line.startsWith('|'));
  return rows
    .slice(0, end < 0 ? undefined : end)
    .map((line) => Object.fromEntries(cells(line).map((cell, i) => [names[i], cell])));
}

/** Reads a cell such as `58.3 (57.9–59.5)`. */
function measured(label: string, cell: string): Bar {
  const [, value, min, max] = /^([\d.,]+)(?: \(([\d.]+)–([\d.]+)\))?/.exec(cell) ?? [];
  if (value === undefined) throw new Error(`expected a figure, got "${cell}"`);
  return {
    label,
    value: Number(value.replaceAll(',', '')),
    ...(min === undefined ? {} : { range: [Number(min), Number(max)] as [number, number] }),
  };
}

/** The engines of a comparison, in the order of its columns. */
function comparison(page: string, engines: readonly string[], isPrefill: boolean): Group[] {
  return tableOf(page, ['work', ...engines])
    .filter(({ work }) => work.startsWith('prefill') === isPrefill)
    .map((row) => ({
      title: row.work,
      bars: engines.map((name) => measured(name === 'capstan' ? 'Capstan' : name, row[name])),
    }));
}

export function plots(): Plot[] {
  const engines = ['llama.cpp', 'OpenVINO', 'capstan'];
  const speeds = ['bf16', 'int8', 'int4'].map((type): Plot => ({
    file: `decode-${type}.svg`,
    title: `Generating text on two cores, ${type} weights`,
    source: `cpu-${type}.md`,
    unit: 'tokens/s',
    groups: comparison(`cpu-${type}.md`, engines, false),
  }));
  const prefill: Plot = {
    file: 'prefill.svg',
    title: 'Reading a prompt of 512 tokens on two cores',
    source: 'cpu-bf16.md, cpu-int8.md, cpu-int4.md',
    unit: 'tokens/s',
    groups: ['bf16', 'int8', 'int4'].flatMap((type) =>
      comparison(`cpu-${type}.md`, engines, true).map(({ bars }) => ({ title: `${type} weights`, bars })),
    ),
  };
  const server: Plot = {
    file: 'server.svg',
    title: 'Eight clients at a time on two cores, bf16 weights, over HTTP',
    source: 'server.md',
    unit: 'output tokens/s',
    groups: tableOf('server.md', ['Capstan', 'vLLM', 'ratio'])
      .filter((row) => row[''].startsWith('output tokens/s'))
      .map((row) => ({
        title: row[''].replace('output tokens/s, by', 'measured by').replaceAll('`', ''),
        bars: [measured('vLLM', row.vLLM), measured('Capstan', row.Capstan)],
      })),
  };
  return [...speeds, prefill, server];
}

const escape = (text: string) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;');
const round = (value: number) => Number(value.toFixed(1));

export function draw({ title, source, unit, groups }: Plot): string {
  const longest = Math.max(...groups.flatMap(({ bars }) => bars.map(({ value, range }) => range?.[1] ?? value)));
  const x = (value: number) => round(LABEL_WIDTH + (value / longest) * (WIDTH - LABEL_WIDTH - VALUE_WIDTH));
  const parts: string[] = [];
  let y = HEAD;
  for (const group of groups) {
    parts.push(`<text class="group" x="8" y="${y + 12}">${escape(group.title)}</text>`);
    y += 20;
    group.bars.forEach(({ label, value, range }, i) => {
      const middle = y + BAR_HEIGHT / 2;
      const colour = COLOURS[label === 'Capstan' ? 2 : i];
      parts.push(
        `<text class="label" x="${LABEL_WIDTH - 8}" y="${middle + 4}">${escape(label)}</text>`,
        `<rect x="${LABEL_WIDTH}" y="${y}" width="${round(x(value) - LABEL_WIDTH)}" height="${BAR_HEIGHT - 3}" fill="${colour}"/>`,
      );
      if (range !== undefined) parts.push(`<path class="range" d="M${x(range[0])} ${middle - 1.5}H${x(range[1])}"/>`);
      parts.push(`<text class="value" x="${x(range?.[1] ?? value) + 6}" y="${middle + 4}">${value}</text>`);
      y += BAR_HEIGHT;
    });
    y += GROUP_GAP;
  }
  const hasRange = groups.some(({ bars }) => bars.some(({ range }) => range !== undefined));
  const height = y + FOOT - GROUP_GAP;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" role="img">`,
    `<title>${escape(title)} (${unit})</title>`,
    '<style>text{font:12px system-ui,sans-serif;fill:#1f2733}.head{font-size:15px;font-weight:600}.group{font-weight:600}.label{text-anchor:end}.foot{fill:#5b6675;font-size:11px}.range{stroke:#1f2733;stroke-opacity:.55}</style>',
    `<rect width="${WIDTH}" height="${height}" fill="#fff"/>`,
    `<text class="head" x="8" y="24">${escape(title)}, ${unit}</text>`,
    ...parts,
    `<text class="foot" x="8" y="${height - 10}">${hasRange ? 'Median and range of the rounds. ' : ''}Figures: ${source} in benchmarks/results</text>`,
    '</svg>',
    '',
  ].join('\n');
}

if (require.main === module)
  for (const plot of plots()) writeFileSync(join(root, 'docs/images', plot.file), draw(plot));
