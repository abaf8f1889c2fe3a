import { CapstanError } from '../../errors';
import type { ReasoningFormat } from './format';
import { harmony } from './harmony';
import { markedFormat } from './marked';

const COHERE = { open: '<|START_THINKING|>', close: '<|END_THINKING|>' };
const THINK = { open: '<think>', close: '</think>' };

/** All supported formats. The first one that matches a chat template is used. */
export const REASONING_FORMATS: readonly ReasoningFormat[] = [
  harmony,
  markedFormat({
    name: 'gemma4',
    aliases: [],
    matchesTemplate: (mentions) => mentions('<|channel>thought'),
    open: '<|channel>thought',
    close: '<channel|>',
  }),
  markedFormat({
    ...COHERE,
    name: 'cohere_command',
    aliases: ['cohere_command3'],
    matchesTemplate: (mentions) => mentions(COHERE.close) && mentions('<|START_RESPONSE|>'),
    answer: { open: '<|START_RESPONSE|>', close: '<|END_RESPONSE|>' },
  }),
  markedFormat({
    ...COHERE,
    name: 'cohere_command4',
    aliases: [],
    matchesTemplate: (mentions) => mentions(COHERE.close),
    answer: { open: '<|START_TEXT|>', close: '<|END_TEXT|>' },
  }),
  markedFormat({
    name: 'apertus',
    aliases: [],
    matchesTemplate: (mentions) => mentions('<|inner_suffix|>'),
    open: '<|inner_prefix|>',
    close: '<|inner_suffix|>',
  }),
  markedFormat({
    name: 'seed_oss',
    aliases: [],
    matchesTemplate: (mentions) => mentions('</seed:think>'),
    open: '<seed:think>',
    close: '</seed:think>',
  }),
  markedFormat({
    name: 'hy3',
    aliases: [],
    matchesTemplate: (mentions) => mentions("'</think{}>'") && mentions("':opensource'"),
    open: '<think:opensource>',
    close: '</think:opensource>',
  }),
  markedFormat({
    name: 'mistral',
    aliases: [],
    matchesTemplate: (mentions) => mentions('[/THINK]'),
    open: '[THINK]',
    close: '[/THINK]',
  }),
  markedFormat({
    name: 'granite',
    aliases: [],
    matchesTemplate: (mentions) => mentions('Here is my response:'),
    open: 'Here is my thought process:',
    close: 'Here is my response:',
  }),
  markedFormat({
    ...THINK,
    name: 'think_response',
    aliases: ['ernie45'],
    matchesTemplate: (mentions) => mentions(THINK.close) && mentions('<response></response>'),
    answer: { open: '<response>', close: '</response>' },
  }),
  markedFormat({
    ...THINK,
    name: 'hunyuan_a13b',
    aliases: ['hunyuan'],
    matchesTemplate: (mentions) => mentions(THINK.close) && mentions('<answer>'),
    answer: { open: '<answer>', close: '</answer>' },
  }),
  markedFormat({
    ...THINK,
    name: 'think',
    aliases: ['qwen3', 'deepseek_r1', 'glm45'],
    matchesTemplate: (mentions) => mentions(THINK.close),
  }),
];

/**
 * Returns the format of a name, or undefined for `none`, and for `auto` if the chat template shows no known format.
 * @param name Name or alias of a format, `none` or `auto`.
 * @param mentions Whether the chat template of the model contains a text.
 * @throws CapstanError `invalid_argument` for an unknown name.
 */
export function findReasoningFormat(name: string, mentions: (text: string) => boolean): ReasoningFormat | undefined {
  if (name === 'none') return undefined;
  if (name === 'auto') return REASONING_FORMATS.find((format) => format.matchesTemplate(mentions));
  const named = REASONING_FORMATS.find((format) => format.name === name || format.aliases.includes(name));
  if (named === undefined)
    throw CapstanError.argument(
      'reasoningFormat',
      `one of auto, none, ${REASONING_FORMATS.map((format) => format.name).join(', ')}`,
      name,
    );
  return named;
}
