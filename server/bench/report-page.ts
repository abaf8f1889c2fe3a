import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { UsageError } from '../base/usage-error';
import { type BenchReport, cellText, type Plot, type Table } from './bench-report';

/** ts/build.js copies the library of the plots beside the compiled file. */
const PLOT_SCRIPT = join(__dirname, 'uplot.js');
const PLOT_STYLE = join(__dirname, 'uplot.css');

/** Returns an HTML page that needs no other file and no network. Without scripts it shows the tables. */
export function renderPage({ title, facts, tables, plots }: BenchReport): string {
  const [style, script] = [PLOT_STYLE, PLOT_SCRIPT].map(readAsset);
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)}</title>
<style>${style}${STYLE}</style>
<h1>${escapeHtml(title)}</h1>
<dl>${facts.map(([name, value]) => `<dt>${escapeHtml(name)}</dt><dd>${escapeHtml(value)}</dd>`).join('')}</dl>
<div id="plots">${plots.map(plotHtml).join('')}</div>
${tables.map(tableHtml).join('\n')}
<script type="application/json" id="data">${JSON.stringify(plots).replaceAll('<', '\\u003c')}</script>
<script>${script}</script>
<script>${DRAW}</script>
</html>
`;
}

function readAsset(file: string): string {
  if (!existsSync(file))
    throw new UsageError(`--report: expected the library of the plots at ${file}. Run npm ci and npm run build`);
  return readFileSync(file, 'utf8');
}

function plotHtml({ title }: Plot): string {
  return `<section class="plot"><h2>${escapeHtml(title)}</h2></section>`;
}

function tableHtml({ title, columns, rows }: Table): string {
  const cell = (value: string | number) =>
    `<td${typeof value === 'number' ? ' class="number"' : ''}>${escapeHtml(cellText(value))}</td>`;
  return `<h2>${escapeHtml(title)}</h2>
<table><thead><tr>${columns.map((column) => `<th>${escapeHtml(column)}</th>`).join('')}</tr></thead>
<tbody>${rows.map((row) => `<tr>${row.map(cell).join('')}</tr>`).join('\n')}</tbody></table>`;
}

function escapeHtml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}

const STYLE = `
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; } dt { color: #57606a; } dd { margin: 0; }
#plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .25rem .75rem; text-align: left; border-bottom: 1px solid #d8dee4; white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
`;

/** Draws one plot in each section. A log scale shows its values as ticks. */
const DRAW = `
const colors = ['#0969da', '#cf222e', '#1a7f37', '#8250df', '#bf8700', '#1b7c83', '#bc4c00', '#57606a'];
const sections = document.querySelectorAll('.plot');
JSON.parse(document.getElementById('data').textContent).forEach(({ x, yLabel, series }, index) => {
  const section = sections[index];
  const ticks = x.isLog ? { splits: () => x.values, filter: (_, all) => all, values: (_, all) => all.map(String) } : {};
  const options = {
    width: section.clientWidth,
    height: 300,
    scales: { x: { time: false, distr: x.isLog ? 3 : 1, log: 2 }, y: { range: (_, min, max) => [0, max * 1.05 || 1] } },
    axes: [{ label: x.label, ...ticks }, { label: yLabel, size: 70 }],
    series: [
      { label: x.label },
      ...series.map(({ label }, i) => ({
        label,
        stroke: colors[i % colors.length],
        width: 2,
        points: { show: x.values.length <= 20 },
        value: (_, value) => (value === null ? '–' : String(Number(value.toPrecision(4)))),
      })),
    ],
  };
  const plot = new uPlot(options, [x.values, ...series.map(({ values }) => values)], section);
  addEventListener('resize', () => plot.setSize({ width: section.clientWidth, height: 300 }));
});
`;
