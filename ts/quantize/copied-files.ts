import { open, readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { CapstanError } from '../errors';
import { makeFolder } from '../make-folder';
import { syncFolder } from './output-folder';

/** Files of a model that a quantized copy keeps. Other files are not copied, because a folder may hold any. */
const TOKENIZER = [
  'tokenizer.json',
  'tokenizer_config.json',
  'special_tokens_map.json',
  'added_tokens.json',
  'tokenizer.model',
  'tekken.json',
  'vocab.json',
  'vocab.txt',
  'merges.txt',
];
const OTHERS = [
  'generation_config.json',
  'chat_template.jinja',
  'chat_template.json',
  'preprocessor_config.json',
  'processor_config.json',
];
const TIKTOKEN = /^[\w.-]+\.tiktoken$/;
/** Of any spelling, with or without an ending. */
const LEGAL = /^(licen[cs]e|notice|readme|use_policy)([._-][\w.-]*)?$/i;
const TEMPLATES = 'additional_chat_templates';
const TEMPLATE = /^[^/]+\.jinja$/;
/** The largest tokenizers have about 35 MB. */
const MAX_FILE_BYTES = 256 << 20;
const MAX_TEMPLATES = 100;

/** Copies tokenizer, chat templates, generation config and licence. Links are followed: the hub's cache has links. */
export async function copyTexts(from: string, to: string): Promise<void> {
  for (const name of await readdir(from)) if (isCopied(name)) await copy(from, to, name);
  const hasTemplates = (await stat(join(from, TEMPLATES)).catch(() => undefined))?.isDirectory() === true;
  if (!hasTemplates) return;
  const [source, target] = [join(from, TEMPLATES), join(to, TEMPLATES)];
  const names = (await readdir(source)).filter((name) => TEMPLATE.test(name));
  if (names.length > MAX_TEMPLATES)
    throw CapstanError.unexpected('invalid_model', TEMPLATES, `at most ${MAX_TEMPLATES} templates`, `${names.length}`);
  makeFolder(target);
  for (const name of names) await copy(source, target, name);
  await syncFolder(target);
}

function isCopied(name: string): boolean {
  return TOKENIZER.includes(name) || OTHERS.includes(name) || TIKTOKEN.test(name) || LEGAL.test(name);
}

/** Ignores folders and other entries that are not files, and broken links. */
async function copy(from: string, to: string, name: string): Promise<void> {
  const stats = await stat(join(from, name)).catch(() => undefined);
  if (stats?.isFile() !== true) return;
  if (stats.size > MAX_FILE_BYTES)
    throw CapstanError.unexpected('invalid_model', name, `at most ${MAX_FILE_BYTES} bytes`, `${stats.size}`);
  await writeDurably(join(to, name), await readFile(join(from, name)));
}

export async function writeDurably(path: string, content: string | Uint8Array): Promise<void> {
  const handle = await open(path, 'w');
  try {
    await handle.writeFile(content);
    await handle.sync();
  } finally {
    await handle.close();
  }
}
