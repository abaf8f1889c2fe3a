import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { CapstanError } from '../errors';
import { type JsonObject, readJsonFile, readTextFile } from '../model/json-file';
import { JinjaTemplate } from './jinja';
import { JSON_DIALECT } from './json-rules';
import type { TemplateMessage, TemplateTraits } from './messages';
import { spacedText } from './python-text';

/** Variables of a template besides the messages. */
export interface RenderOptions {
  tools?: readonly unknown[];
  /** Ends the prompt with the start of an assistant message. Default: true unless `continueFinalMessage` is true. */
  addGenerationPrompt?: boolean;
  /** Ends the prompt inside the last message, so that the model continues it. Default: false. */
  continueFinalMessage?: boolean;
  /** Further variables of the template, in its spelling, such as `enable_thinking`. */
  templateKwargs?: Readonly<Record<string, unknown>>;
}

const CONFIG_FILE = 'tokenizer_config.json';
const TEMPLATE_FILE = 'chat_template.jinja';
/** Models of text with images had their template here, and older models their special tokens. */
const PROCESSOR_FILE = 'chat_template.json';
const SPECIAL_TOKENS_FILE = 'special_tokens_map.json';
const NAMED_TEMPLATES_FOLDER = 'additional_chat_templates';
/** Matches `+ tool['function']['arguments'] +` without a filter, also at the end of an expression. */
const JOINED_ARGUMENTS = /\+\s*[\w.'"[\]]*\barguments['"]?\]?\s*(?:\+|-?}})/;
const ARGUMENTS_TO_JSON = /\barguments['"]?\]?\s*\|\s*tojson/;
/** Matches a loop over the parts of a message's content. */
const CONTENT_LOOP =
  /\bfor\s+(?:content\s+in\s+\w+|\w+\s+in\s+(?:[\w.]*\.)?(?:content|\w+\[['"]content['"]\]))\s*(?:-?%}|if\b|\|)/;
/** Marks the end of the last message's content in the rendered text. */
const CONTINUE_MARK = 'CONTINUE_FINAL_MESSAGE_MARK ';

/** Matches the templates of Phi-4-mini, which take the tools from the system message, as JSON text. */
const TOOLS_IN_SYSTEM = /\bmessage\['tools'\]/;

/** Matches `== 'assistant' and message['content'] is none` of DeepSeek, which chooses between calls and text. */
const NO_CONTENT = /'assistant' and message\['content'\] is (?:not )?none|\{%-? if message\['content'\] is none %\}/;

/**
 * The chat template of a model. Renders messages and tools to prompt text, as `apply_chat_template` of transformers
 * does.
 */
export class ChatTemplate {
  readonly #sources: ReadonlyMap<string, string>;
  readonly #specialTokens: Readonly<Record<string, unknown>>;
  readonly #compiled = new Map<string, Promise<JinjaTemplate>>();

  constructor(sources: ReadonlyMap<string, string>, specialTokens: Readonly<Record<string, unknown>>) {
    this.#sources = sources;
    this.#specialTokens = specialTokens;
  }

  /**
   * Takes the template from `override`, else from chat_template.jinja and its folder of named templates, else from
   * tokenizer_config.json or chat_template.json.
   * @throws CapstanError `invalid_argument` for an invalid `override`. The model's own template is compiled on first
   *   use.
   */
  static async load(modelDir: string, override?: string): Promise<ChatTemplate> {
    const read = async (name: string) => (await readJsonFile(modelDir, name)) ?? {};
    const [config, processor, specialTokens, files] = await Promise.all([
      read(CONFIG_FILE),
      read(PROCESSOR_FILE),
      read(SPECIAL_TOKENS_FILE),
      override === undefined ? readTemplateFiles(modelDir) : new Map([['default', override]]),
    ]);
    if (override !== undefined) await checkOverride(override);
    // A template that is not used may be of any form.
    let sources = files;
    if (sources.size === 0) sources = readConfigTemplates(config, CONFIG_FILE);
    if (sources.size === 0) sources = readConfigTemplates(processor, PROCESSOR_FILE);
    return new ChatTemplate(sources, {
      ...readSpecialTokens(specialTokens),
      ...readSpecialTokens(config),
    });
  }

  /** The token that ends a text, if the files name one. */
  get eosToken(): string | undefined {
    const { eos_token: token } = this.#specialTokens;
    return typeof token === 'string' ? token : undefined;
  }

  /** Adds special tokens that the files of the template do not have. */
  withSpecialTokens(tokens: Readonly<Record<string, string>>): ChatTemplate {
    return new ChatTemplate(this.#sources, { ...tokens, ...this.#specialTokens });
  }

  /** Like `load`, for templates that another file holds. */
  static async create(
    sources: ReadonlyMap<string, string>,
    specialTokens: Readonly<Record<string, string>>,
    override?: string,
  ): Promise<ChatTemplate> {
    if (override !== undefined) await checkOverride(override);
    return new ChatTemplate(override === undefined ? sources : new Map([['default', override]]), specialTokens);
  }

  /** Whether any of the templates contains a text, such as a marker that the model was trained on. */
  mentions(text: string): boolean {
    return [...this.#sources.values()].some((source) => source.includes(text));
  }

  #matches(pattern: RegExp): boolean {
    return [...this.#sources.values()].some((source) => pattern.test(source));
  }

  get traits(): TemplateTraits {
    return {
      knowsDeveloper: this.mentions('developer'),
      joinsArguments: this.#matches(JOINED_ARGUMENTS) && !this.#matches(ARGUMENTS_TO_JSON),
      knowsParts: this.#matches(CONTENT_LOOP),
      knowsNoContent: this.#matches(NO_CONTENT),
    };
  }

  /** @throws CapstanError `template_error` if there is no template or it fails. */
  async render(messages: readonly TemplateMessage[], options: RenderOptions = {}): Promise<string> {
    const {
      tools,
      continueFinalMessage = false,
      addGenerationPrompt = !continueFinalMessage,
      templateKwargs,
    } = options;
    const template = await this.#compile(tools !== undefined && this.#sources.has('tool_use') ? 'tool_use' : 'default');
    const shown = tools === undefined || !this.#matches(TOOLS_IN_SYSTEM) ? messages : withSystemTools(messages, tools);
    const variables = {
      documents: null,
      ...this.#specialTokens,
      // The name of the tools in the template of SmolLM3.
      ...(tools === undefined ? {} : { xml_tools: tools }),
      ...templateKwargs,
      messages: continueFinalMessage ? markFinalMessage(shown) : shown,
      tools: tools ?? null,
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
        `chat template: expected one in ${TEMPLATE_FILE}, ${CONFIG_FILE}, ${PROCESSOR_FILE} or the GGUF file, ` +
          'but the model has none' +
          (this.#sources.size > 0 ? ` named default, only ${[...this.#sources.keys()].join(', ')}` : '') +
          '. Name a file with the option chatTemplate (--chat-template)',
        { param: 'messages' },
      );
    }
    const compiled = this.#compiled.get(name) ?? JinjaTemplate.compile(source).catch(throwTemplateError);
    this.#compiled.set(name, compiled);
    return compiled;
  }
}

async function checkOverride(override: string): Promise<void> {
  await JinjaTemplate.compile(override).catch(({ message }: Error) => {
    throw CapstanError.argument('chatTemplate', `a Jinja template (${message})`, override);
  });
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

/** `chat_template` is one template, or a list of named templates. */
function readConfigTemplates({ chat_template: templates }: JsonObject, file: string): Map<string, string> {
  if (templates === undefined || templates === null) return new Map();
  if (typeof templates === 'string') return new Map([['default', templates]]);
  const named = (Array.isArray(templates) ? templates : [templates]) as { name?: unknown; template?: unknown }[];
  return new Map(
    named.map((entry) => {
      if (typeof entry?.name !== 'string' || typeof entry.template !== 'string') {
        throw CapstanError.mismatch(
          'invalid_model',
          `${file}: chat_template`,
          'a string or a list of named templates',
          templates,
        );
      }
      return [entry.name, entry.template];
    }),
  );
}

/** Tokens such as `bos_token` are strings, or objects with the string in `content`. */
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

/** Adds the tools to the system message, which is created if there is none. */
function withSystemTools(messages: readonly TemplateMessage[], tools: readonly unknown[]): TemplateMessage[] {
  const definitions = tools.map((tool) => (tool as { function?: unknown }).function ?? tool);
  const [first, ...rest] = messages;
  const isSystem = first?.role === 'system';
  const system = isSystem ? first : { role: 'system', content: '' };
  return [{ ...system, tools: spacedText(definitions, JSON_DIALECT) }, ...(isSystem ? rest : messages)];
}

function markFinalMessage(messages: readonly TemplateMessage[]): TemplateMessage[] {
  const last = messages.at(-1);
  if (typeof last?.content !== 'string')
    throw CapstanError.argument('continueFinalMessage', 'a last message with text to continue', last?.content);
  return [...messages.slice(0, -1), { ...last, content: last.content + CONTINUE_MARK }];
}

/** The mark ends with a space. If the template trimmed it, the content was trimmed as well. */
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
