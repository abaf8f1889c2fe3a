import { ApiError } from '../../base/errors';
import type { SentPrompts } from './schema';
import { show } from '../../base/json/validate';

/** A text or token ids. */
export type Prompt = string | number[] | Int32Array;

/**
 * Returns one or several prompts. Throws an ApiError for a mixture, an empty prompt and too many.
 * @param param The field that holds them.
 */
export function toPrompts(param: string, sent: SentPrompts, maxPrompts: number): Prompt[] {
  if (typeof sent === 'string') return [checkPrompt(param, sent)];
  const kinds = new Set(sent.map((item) => (Array.isArray(item) ? 'list' : typeof item)));
  if (kinds.size > 1)
    throw new ApiError('invalid_type', `${param}: expected items of one type, got several`, { param });
  if (kinds.has('number')) return [sent as number[]];
  if (sent.length > maxPrompts)
    throw new ApiError('invalid_value', `${param}: expected at most ${maxPrompts} ${param}s, got ${sent.length}`, {
      param,
    });
  return (sent as Prompt[]).map((prompt) => checkPrompt(param, prompt));
}

function checkPrompt(param: string, prompt: Prompt): Prompt {
  if (prompt.length === 0)
    throw new ApiError('invalid_value', `${param}: expected at least one character or token, got ${show(prompt)}`, {
      param,
    });
  return prompt;
}
