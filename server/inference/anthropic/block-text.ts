/** The text of content blocks. */
import { ApiError } from '../../base/errors';
import { show } from '../../base/json/validate';
import type { InnerBlock, TextBlock } from './schema';

/** Returns the text of each block. Throws an ApiError that names the first block of another type. */
export function textsOf(content: string | readonly TextBlock[], path: string): string[] {
  return typeof content === 'string'
    ? [content]
    : content.map((block, i) => textOf(block, `${path}[${i}]`, 'text, the only input of this model'));
}

function textOf({ type, text }: TextBlock, path: string, expected: string): string {
  if (type !== 'text') throw unsupported(type, expected, path);
  return required(text, `${path}.text`);
}

/** Claude Code takes an image out of its conversation if an error says this, and continues. */
const NO_IMAGE = 'Could not process image';

/** The type of a block that refers to a tool of the request. */
export const REFERENCE = 'tool_reference';

/** Returns the text of each block of a tool's result. */
export function resultOf(content: string | readonly InnerBlock[], path: string): string[] {
  if (typeof content === 'string') return [content];
  return content.map((block, i) => {
    const at = `${path}[${i}]`;
    return block.type === REFERENCE
      ? `Found the tool ${required(block.tool_name, `${at}.tool_name`)}.`
      : readable(block, at, `text, document, search_result or ${REFERENCE}`);
  });
}

/** Returns the text of a block with a text, a document or a search result. */
export function readable(block: InnerBlock, path: string, expected: string): string {
  if (block.type === 'document') return documentOf(block, path);
  return block.type === 'search_result' ? searchResultOf(block, path) : textOf(block, path, expected);
}

function documentOf({ source, title, context, citations }: InnerBlock, path: string): string {
  refuseCitations(citations, path);
  const content = sourceOf(required(source, `${path}.source`), `${path}.source`);
  return elementOf('document', { title, context }, content);
}

function searchResultOf({ source, title, content, citations }: InnerBlock, path: string): string {
  refuseCitations(citations, path);
  const origin = required(source, `${path}.source`);
  if (typeof origin !== 'string') throw notOfType(`${path}.source`, 'a string', origin);
  const texts = textsOf(required(content, `${path}.content`), `${path}.content`);
  return elementOf('search_result', { source: origin, title }, texts.join('\n'));
}

function elementOf(name: string, fields: Readonly<Record<string, string | undefined>>, content: string): string {
  const lines = [
    `<${name}>`,
    ...Object.entries(fields).flatMap(([key, value = '']) => (value === '' ? [] : [`<${key}>${value}</${key}>`])),
    `<content>\n${content}\n</content>`,
    `</${name}>`,
  ];
  // Chat templates put nothing between the texts of a message.
  return `${lines.join('\n')}\n`;
}

function refuseCitations(citations: unknown, path: string): void {
  if ((citations as { enabled?: unknown } | undefined)?.enabled !== true) return;
  const param = `${path}.citations`;
  const message = `${param}: expected citations that are not enabled, because this server makes none`;
  throw new ApiError('unsupported_value', message, { param });
}

function sourceOf(source: NonNullable<InnerBlock['source']>, path: string): string {
  if (typeof source === 'string') throw notOfType(path, 'an object', source);
  const { type, data, content } = source;
  if (type === 'text') return required(data, `${path}.data`);
  if (type === 'content') return textsOf(required(content, `${path}.content`), `${path}.content`).join('\n');
  throw unsupported(type, 'text or content, because this model reads no PDF files', path);
}

function notOfType(param: string, expected: string, received: unknown): ApiError {
  return new ApiError('invalid_type', `${param}: expected ${expected}, got ${show(received)}`, { param });
}

export function unsupported(type: string, expected: string, path: string): ApiError {
  const param = `${path}.type`;
  const message = `${param}: expected ${expected}, got ${show(type)}`;
  return new ApiError('unsupported_value', type === 'image' ? `${message}. ${NO_IMAGE}` : message, { param });
}

export function required<T>(value: T | undefined, param: string): T {
  if (value !== undefined) return value;
  throw new ApiError('missing_required_parameter', `${param}: expected a value, but it is missing`, { param });
}
