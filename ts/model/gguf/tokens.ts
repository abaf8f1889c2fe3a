import type { JsonReader } from '../json-file';

/** Values of `tokenizer.ggml.token_type`. Undefined types count as normal. */
export const TOKEN_TYPE = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

/** Ids that the metadata names: the end of a text, of a turn and of a message. */
const END_KEYS = ['eos_token_id', 'eot_token_id', 'eom_token_id'];

/**
 * Control tokens with which models end a turn. A GGUF file has one EOS token, but generation_config.json often lists
 * several: without the others, text runs on behind its end.
 */
const END_TOKENS: ReadonlySet<string> = new Set([
  '<|endoftext|>',
  '<|end_of_text|>',
  '<|eot_id|>',
  '<|eom_id|>',
  '<|im_end|>',
  '<|end|>',
  '<end_of_turn>',
  '<end_of_utterance>',
  '<|return|>',
  '<|call|>',
  '<|observation|>',
  '<｜end▁of▁sentence｜>',
  '</s>',
  '<EOT>',
  '[EOT]',
]);

/** Returns the tokens that end a completion. */
export function readEosTokenIds(metadata: JsonReader): number[] {
  const ids = new Set(END_KEYS.flatMap((name) => metadata.tokenIds(`tokenizer.ggml.${name}`)));
  const tokens = metadata.raw('tokenizer.ggml.tokens');
  const types = metadata.raw('tokenizer.ggml.token_type');
  if (Array.isArray(tokens) && ArrayBuffer.isView(types))
    tokens.forEach((token, id) => {
      if ((types as Int32Array)[id] === TOKEN_TYPE.control && END_TOKENS.has(token as string)) ids.add(id);
    });
  return [...ids];
}
