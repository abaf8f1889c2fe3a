import { CapstanError } from '../../errors';
import { apertus } from './apertus';
import { deepseekV3, deepseekV31 } from './deepseek';
import type { ToolCallFormat } from './format';
import { gemma4 } from './gemma';
import { glm45, hy3 } from './glm';
import { harmonyCalls } from './harmony';
import { hermes } from './hermes';
import { cohereCommand, granite, hunyuanA13b, phi4Mini } from './json-list';
import { llama3Json } from './llama';
import { mistral, mistralArgs } from './mistral';
import { lfm2, olmo3, pythonic } from './pythonic';
import { qwen3Coder, seedOss } from './qwen-coder';

/** All supported formats. The first one that matches a chat template is used. */
export const TOOL_CALL_FORMATS: readonly ToolCallFormat[] = [
  harmonyCalls,
  cohereCommand,
  apertus,
  gemma4,
  seedOss,
  qwen3Coder,
  glm45,
  hy3,
  granite,
  phi4Mini,
  hunyuanA13b,
  lfm2,
  olmo3,
  hermes,
  mistralArgs,
  mistral,
  deepseekV3,
  deepseekV31,
  pythonic,
  llama3Json,
];

/**
 * Returns the format of a name, or undefined for `auto` if the chat template shows no known format.
 * @param name Name or alias of a format, or `auto`.
 * @param mentions Whether the chat template of the model contains a text.
 * @throws CapstanError `invalid_argument` for an unknown name.
 */
export function findToolCallFormat(name: string, mentions: (text: string) => boolean): ToolCallFormat | undefined {
  const detected = TOOL_CALL_FORMATS.find((format) => format.matchesTemplate(mentions));
  if (name === 'auto') return detected;
  // Other servers use one name for both formats of Mistral.
  if (name === mistral.name && detected === mistralArgs) return detected;
  const named = TOOL_CALL_FORMATS.find((format) => format.name === name || format.aliases.includes(name));
  if (named === undefined)
    throw CapstanError.argument(
      'toolCallFormat',
      `one of auto, ${TOOL_CALL_FORMATS.map((format) => format.name).join(', ')}`,
      name,
    );
  return named;
}
