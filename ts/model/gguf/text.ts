import { basename } from 'node:path';
import { JsonReader } from '../json-file';
import { readGgufHeader } from './header';
import { type ConvertedTokenizer, makeTokenizerJson } from './tokenizer';
import { readSpecialTokens } from './vocabulary';

/** What a GGUF file says about text, in the form of the files of a Hugging Face directory. */
export interface GgufText extends ConvertedTokenizer {
  /** Name of the file. */
  file: string;
  /** Chat templates by name. */
  templates: Map<string, string>;
}

const TEMPLATE_KEY = 'tokenizer.chat_template';
/** Values of `tokenizer.ggml.model` in files without a vocabulary. */
const NO_VOCABULARY = ['no_vocab', 'none'];

/**
 * Returns undefined if the file says that it has no vocabulary.
 * @throws CapstanError `invalid_model` or `unsupported_model` that names the file and the key, or `io_error`.
 */
export async function readGgufText(path: string): Promise<GgufText | undefined> {
  const file = basename(path);
  const header = await readGgufHeader(path, file);
  const metadata = new JsonReader(header.metadata, file);
  if (NO_VOCABULARY.includes(metadata.string('tokenizer.ggml.model'))) return undefined;
  const tokenizer = makeTokenizerJson(metadata, file);
  return { file, tokenizer, templates: readTemplates(header.metadata), specialTokens: readSpecialTokens(metadata) };
}

/** `tokenizer.chat_template` is the default, `tokenizer.chat_template.NAME` a template for another purpose. */
function readTemplates(metadata: Readonly<Record<string, unknown>>): Map<string, string> {
  const templates = new Map<string, string>();
  for (const [key, value] of Object.entries(metadata)) {
    if (typeof value !== 'string') continue;
    if (key === TEMPLATE_KEY) templates.set('default', value);
    else if (key.startsWith(`${TEMPLATE_KEY}.`)) templates.set(key.slice(TEMPLATE_KEY.length + 1), value);
  }
  return templates;
}
