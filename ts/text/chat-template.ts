import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { CapstanError } from '../errors';
import { type JsonObject, parseJsonObject, readTextFile } from '../model/json-file';
import { JinjaTemplate } from './jinja';
import type { TemplateMessage, TemplateTraits } from './messages';

/** What a template is rendered with, beside the messages. */
export interface RenderOptions {
  tools?: readonly unknown[];
  /** Begin an assistant's turn; default true unless the last message is continued. */
  addGenerationPrompt?: boolean;
  /** End within the last message, for the model to go on writing it; default false. */
  continueFinalMessage?: boolean;
  /** Further variables of the template, such as `enable_thinking`, in its own spelling. */
  templateKwargs?: Readonly<Record<string, unknown>>;
}

const CONFIG_FILE = 'tokenizer_config.json';
const TEMPLATE_FILE = 'chat_template.jinja';
const NAMED_TEMPLATES_FOLDER = 'additional_chat_templates';
/** `+ tool['function']['arguments'] +`, without a filter. */
const JOINED_ARGUMENTS = /\+\s*[\w.'"[\]]*\barguments['"]?\]?\s*\+/;
/** Marks where the last message's content ends in the rendered text. */
const CONTINUE_MARK = 'CONTINUE_FINAL_MESSAGE_MARK ';

/** The chat template of a model directory: messages and tools to prompt text, as transformers' `apply_chat_template` renders. */
export class ChatTemplate {
  readonly #sources: ReadonlyMap<string, string>;
  readonly #specialTokens: Readonly<Record<string, unknown>>;
  readonly #compiled = new Map<string, Promise<JinjaTemplate>>();

  constructor(sources: ReadonlyMap<string, string>, specialTokens: Readonly<Record<string, unknown>>) {
    this.#sources = sources;
    this.#specialTokens = specialTokens;
  }

  /**
   * The text given, else from chat_template.jinja (and its folder of named ones), else from tokenizer_config.json.
   * @throws CapstanError `invalid_argument` for a text given that is no template; the model's own is compiled when it is needed.
   */
  static async load(modelDir: string, given?: string): Promise<ChatTemplate> {
    const [configText, files] = await Promise.all([
      readTextFile(modelDir, CONFIG_FILE),
      given === undefined ? readTemplateFiles(modelDir) : new Map([['default', given]]),
    ]);
    if (given !== undefined)
      await JinjaTemplate.compile(given).catch(({ message }: Error) => {
        throw CapstanError.argument('chatTemplate', `a Jinja template (${message})`, given);
      });
    const config = configText === undefined ? {} : parseJsonObject(configText, CONFIG_FILE);
    return new ChatTemplate(files.size > 0 ? files : readConfigTemplates(config), readSpecialTokens(config));
  }

  /** Whether any of the templates has this text, for example a marker that the model was trained on. */
  mentions(text: string): boolean {
    return [...this.#sources.values()].some((source) => source.includes(text));
  }

  get traits(): TemplateTraits {
    return {
      knowsDeveloper: this.mentions('developer'),
      joinsArguments: [...this.#sources.values()].some((source) => JOINED_ARGUMENTS.test(source)),
      knowsNoContent: this.mentions("['content'] is none") || this.mentions("['content'] is not none"),
    };
  }

  /** @throws CapstanError `template_error` without a template, or when it throws. */
  async render(messages: readonly TemplateMessage[], options: RenderOptions = {}): Promise<string> {
    const {
      tools,
      continueFinalMessage = false,
      addGenerationPrompt = !continueFinalMessage,
      templateKwargs,
    } = options;
    const template = await this.#compile(tools !== undefined && this.#sources.has('tool_use') ? 'tool_use' : 'default');
    const variables = {
      ...this.#specialTokens,
      ...templateKwargs,
      messages: continueFinalMessage ? markFinalMessage(messages) : messages,
      tools: tools ?? null,
      documents: null,
      add_generation_prompt: addGenerationPrompt,
    };
    const text = render(template, variables);
    return continueFinalMessage ? cutAtMark(text) : text;
  }

  #compile(name: string): Promise<JinjaTemplate> {
    const source = this.#sources.get(name);
    if (source === undefined) {
      throw new CapstanError(
        'template_error',
        `chat template: expected one in ${TEMPLATE_FILE} or ${CONFIG_FILE}, but the model has none` +
          (this.#sources.size > 0 ? ` called default, only ${[...this.#sources.keys()].join(', ')}` : ''),
        { param: 'messages' },
      );
    }
    const compiled = this.#compiled.get(name) ?? JinjaTemplate.compile(source).catch(throwTemplateError);
    this.#compiled.set(name, compiled);
    return compiled;
  }
}

async function readTemplateFiles(modelDir: string): Promise<Map<string, string>> {
  const sources = new Map<string, string>();
  const main = await readTextFile(modelDir, TEMPLATE_FILE);
  if (main !== undefined) sources.set('default', main);
  const names = await readdir(join(modelDir, NAMED_TEMPLATES_FOLDER)).catch(() => []);
  for (const name of names.filter((file) => file.endsWith('.jinja'))) {
    const source = await readTextFile(join(modelDir, NAMED_TEMPLATES_FOLDER), name);
    if (source !== undefined) sources.set(name.slice(0, -'.jinja'.length), source);
  }
  return sources;
}

/** `chat_template` is a text, or a list of named ones. */
function readConfigTemplates({ chat_template: templates }: JsonObject): Map<string, string> {
  if (templates === undefined || templates === null) return new Map();
  if (typeof templates === 'string') return new Map([['default', templates]]);
  const named = (Array.isArray(templates) ? templates : [templates]) as { name?: unknown; template?: unknown }[];
  return new Map(
    named.map((entry) => {
      if (typeof entry?.name !== 'string' || typeof entry.template !== 'string') {
        throw CapstanError.mismatch(
          'invalid_model',
          `${CONFIG_FILE}: chat_template`,
          'a text or a list of named templates',
          templates,
        );
      }
      return [entry.name, entry.template];
    }),
  );
}

/** `bos_token` and the like: texts, or records with the text as `content`. */
function readSpecialTokens(config: JsonObject): Record<string, unknown> {
  const tokens: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(config)) {
    if (!key.endsWith('_token')) continue;
    const text: unknown =
      typeof value === 'object' && value !== null ? (value as { content?: unknown }).content : value;
    if (typeof text === 'string') tokens[key] = text;
  }
  return tokens;
}

function markFinalMessage(messages: readonly TemplateMessage[]): TemplateMessage[] {
  const last = messages.at(-1);
  if (typeof last?.content !== 'string')
    throw CapstanError.argument('continueFinalMessage', 'a last message with text to continue', last?.content);
  return [...messages.slice(0, -1), { ...last, content: last.content + CONTINUE_MARK }];
}

/** A template that trims the content also takes the mark's blank: then the text's own trailing blanks go as well. */
function cutAtMark(text: string): string {
  const end = text.lastIndexOf(CONTINUE_MARK.trim());
  if (end < 0)
    throw new CapstanError(
      'template_error',
      'chat template: expected the last message in the rendered prompt, but the template left it out',
      { param: 'messages' },
    );
  return text.startsWith(CONTINUE_MARK, end) ? text.slice(0, end) : text.slice(0, end).trimEnd();
}

function render(template: JinjaTemplate, variables: Record<string, unknown>): string {
  try {
    return template.render(variables);
  } catch (cause) {
    return throwTemplateError(cause);
  }
}

function throwTemplateError(cause: unknown): never {
  throw new CapstanError('template_error', `chat template: ${(cause as Error).message}`, { param: 'messages', cause });
}
