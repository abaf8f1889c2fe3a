/** The code blocks of the documentation. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export const root = join(__dirname, '../../..');

export interface Block {
  /** Path in the repository. */
  page: string;
  /** Line of its first line, from 1. */
  line: number;
  /** The language of a fence, or `shell` for an indented block. */
  language: string;
  text: string;
}

export function listPages(): string[] {
  const docs = readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md') && !name.startsWith('.vitepress'))
    .sort();
  return ['README.md', ...docs.map((name) => `docs/${name}`)];
}

/** Returns the fenced and the indented blocks of a page, in order. */
export function blocksOf(page: string): Block[] {
  const lines = readFileSync(join(root, page), 'utf8').split('\n');
  const blocks: Block[] = [];
  for (let i = 0; i < lines.length; i++) {
    const fence = /^( *)```(\w*)/.exec(lines[i]);
    const isIndented = lines[i].startsWith('    ') && (lines[i - 1] ?? '').trim() === '';
    if (fence === null && !isIndented) continue;
    const begin = fence === null ? i : i + 1;
    let end = begin;
    const isInside = (line: string | undefined): boolean =>
      line !== undefined &&
      (fence === null ? line.startsWith('    ') || line.trim() === '' : !line.trim().startsWith('```'));
    while (isInside(lines[end])) end++;
    const text = lines
      .slice(begin, end)
      .map((line) => line.slice(fence === null ? 4 : fence[1].length))
      .join('\n')
      .trimEnd();
    blocks.push({ page, line: begin + 1, language: fence === null ? 'shell' : fence[2] || 'text', text });
    i = fence === null ? end - 1 : end;
  }
  return blocks;
}
