import { CapstanError } from '../../errors';
import { deepseekV3, deepseekV31 } from './deepseek';
import type { ToolCallFormat } from './format';
import { hermes } from './hermes';
import { llama3Json } from './llama';
import { mistral, mistralArgs } from './mistral';
import { pythonic } from './pythonic';
import { qwen3Coder } from './qwen-coder';

/** Every format that we know. A template's is the first that it is written by. */
export const TOOL_CALL_FORMATS: readonly ToolCallFormat[] = [
  qwen3Coder,
  hermes,
  mistralArgs,
  mistral,
  deepseekV3,
  deepseekV31,
  pythonic,
  llama3Json,
];

/** Texts that a tokenizer must not hide, whatever it calls them. */
export const TOOL_CALL_MARKERS: readonly string[] = [...new Set(TOOL_CALL_FORMATS.flatMap(({ markers }) => markers))];

/**
 * @param name A format's name, or `auto`: the one that the chat template shows, if any.
 * @param mentions Whether the model's chat template has a text.
 * @throws CapstanError `invalid_argument` for a name that no format has.
 */
export function findToolCallFormat(name: string, mentions: (text: string) => boolean): ToolCallFormat | undefined {
  const shown = TOOL_CALL_FORMATS.find((format) => format.isWrittenBy(mentions));
  if (name === 'auto') return shown;
  // Mistral's two ways of writing have one name elsewhere.
  if (name === mistral.name && shown === mistralArgs) return shown;
  const named = TOOL_CALL_FORMATS.find((format) => format.name === name || format.aliases.includes(name));
  if (named === undefined)
    throw CapstanError.argument(
      'toolCallFormat',
      `one of auto, ${TOOL_CALL_FORMATS.map((format) => format.name).join(', ')}`,
      name,
    );
  return named;
}
