import type { CachedRepository, ModelInfo } from '../../../ts';
import { formatBytes } from '../../base/bytes';
import { fitWarning, uncheckedWarning } from '../../base/model-fit';
import { counted } from '../../base/words';
import { renderTable } from '../text-table';
import { formatPast } from './key-list';

const SHORT_COMMIT = 12;

/** Returns a table with a row per revision, or a hint if there are none. */
export function renderModels(models: readonly CachedRepository[], nowMs: number): string {
  if (models.length === 0) return 'No models found. Download one with: capstan pull ORG/NAME\n';
  const rows = models.flatMap(({ repository, revisions, partialBytes }) => [
    ...revisions.map(({ commit, revisions: names, files, sizeBytes, lastUsedMs }) => [
      repository,
      names.join(', ') || '-',
      commit.slice(0, SHORT_COMMIT),
      formatBytes(sizeBytes),
      String(files.length),
      formatPast(lastUsedMs, nowMs),
    ]),
    ...(partialBytes > 0 ? [[repository, 'not complete', '-', formatBytes(partialBytes), '-', '-']] : []),
  ]);
  return renderTable(['NAME', 'REVISION', 'COMMIT', 'SIZE', 'FILES', 'LAST USED'], rows);
}

/** Returns the description of a model from the hub in lines. */
export function describeModel(info: ModelInfo): string {
  const { repository, revision, commit, format, quantization, files, totalBytes, downloadBytes } = info;
  const unchecked = uncheckedWarning(info);
  const download = downloadBytes === 0 ? 'nothing, the cache has it' : formatBytes(downloadBytes);
  const fields: [string, string][] = [
    ['name', repository],
    ['revision', `${revision} (${commit})`],
    ['format', quantization === null ? format : `${format}, ${quantization}`],
    ['size', `${formatBytes(totalBytes)} in ${counted(files.length, 'file')}`],
    ['to download', download],
    ...memoryFields(info),
    ...(unchecked === undefined ? [] : [['not checked', unchecked] satisfies [string, string]]),
    ...(info.problem === null ? [] : [['problem', info.problem] satisfies [string, string]]),
  ];
  const width = Math.max(...fields.map(([name]) => name.length));
  const table = fields.map(([name, value]) => `${name.padEnd(width)}  ${value}\n`).join('');
  return `${table}\n${fileTable(info)}${quantizationTable(info)}`;
}

function memoryFields(info: ModelInfo): [string, string][] {
  const { fit } = info;
  if (fit === null) return [];
  const { weightBytes, kvCacheBytes, contextLength, availableBytes } = fit;
  const cache =
    kvCacheBytes === 0
      ? ', and a KV cache of unknown size'
      : `, and ${formatBytes(kvCacheBytes)} for the KV cache of ${contextLength} tokens`;
  return [
    ['memory', `${formatBytes(weightBytes)} for the weights${cache}`],
    ['fits', fitWarning(info) ?? `yes, ${formatBytes(availableBytes)} are free`],
  ];
}

function fileTable({ files }: ModelInfo): string {
  const rows = files.map(({ path, sizeBytes, isCached }) => [path, formatBytes(sizeBytes), isCached ? 'yes' : 'no']);
  return renderTable(['FILE', 'SIZE', 'IN CACHE'], rows);
}

function quantizationTable({ quantizations }: ModelInfo): string {
  if (quantizations.length === 0) return '';
  const shown = new Map<boolean | null, string>([
    [true, 'yes'],
    [false, 'no'],
  ]);
  const rows = quantizations.map(({ name, sizeBytes, fits }) => [name, formatBytes(sizeBytes), shown.get(fits) ?? '-']);
  return `\n${renderTable(['QUANTIZATION', 'SIZE', 'FITS'], rows)}`;
}
