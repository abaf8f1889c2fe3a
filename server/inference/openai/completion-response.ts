import type { Choice, Engine, FinishEvent, GenerationResult, TokenLogprob, Usage } from '../../../ts';
import type { CompletionHead } from './chat-response';
import type { CompletionCall } from './completion-request';
import { completionLogprobs, type PlacedToken, promptLogprobs, TextOffsets, type TokenWords } from './logprobs';
import { addUsages, type WireUsage, wireUsage } from './usage';

/** How responses describe tokens. */
export interface CompletionStyle {
  engine: Pick<Engine, 'detokenize'>;
  words: TokenWords;
  hasPrefixCache: boolean;
}

/** A prompt as `echo` repeats it. */
export interface EchoedPrompt {
  text: string;
  tokenIds: Int32Array;
}

export function textCompletion(
  head: CompletionHead,
  choices: readonly object[],
  usages: readonly Usage[],
  { hasPrefixCache }: CompletionStyle,
): object {
  return {
    id: head.id,
    object: 'text_completion',
    created: head.created,
    model: head.model,
    choices,
    usage: wireUsage(addUsages(usages), hasPrefixCache),
  };
}

/** Returns one chunk of a stream. The usage chunk has no choices. */
export function completionChunk(head: CompletionHead, choices: readonly object[], usage?: WireUsage): string {
  return JSON.stringify({
    id: head.id,
    object: 'text_completion',
    created: head.created,
    model: head.model,
    choices,
    ...(usage === undefined ? {} : { usage }),
  });
}

/** Returns the choices of one prompt. @param firstIndex Number of choices of the earlier prompts. */
export function completionChoices(
  call: CompletionCall,
  { choices, promptTokenIds, promptLogprobs: promptTokens }: GenerationResult,
  prompt: EchoedPrompt,
  firstIndex: number,
  style: CompletionStyle,
): object[] {
  return choices.map((choice) => {
    const reader = new CompletionTokens(call, style);
    const echoed = call.isEcho ? reader.prompt(prompt, promptTokens) : [];
    const tokens = [...echoed, ...reader.completion(choice.logprobs ?? [])];
    return {
      index: firstIndex + choice.index,
      text: call.isEcho ? prompt.text + choice.text : choice.text,
      logprobs: call.numLogprobs === undefined ? null : completionLogprobs(tokens, call.numLogprobs, style.words),
      finish_reason: choice.finishReason,
      stop_reason: choice.stopReason,
      prompt_logprobs: promptTokens === undefined ? null : promptLogprobs(promptTokens, style.words),
      ...(call.returnsTokenIds ? tokenIdFields(choice, promptTokenIds) : {}),
    };
  });
}

function tokenIdFields({ tokenIds }: Choice, promptTokenIds: Int32Array): object {
  return { token_ids: [...tokenIds], prompt_token_ids: [...promptTokenIds] };
}

/** New text and tokens of one choice, for one chunk. */
export interface CompletionPiece {
  text: string;
  /** Empty without log-probabilities. */
  tokens: PlacedToken[];
  tokenIds: number[];
  /** Only in the first piece of a choice. */
  promptTokenIds?: Int32Array;
  finish?: FinishEvent;
}

export function pieceChoice(
  index: number,
  { text, tokens, tokenIds, promptTokenIds, finish }: CompletionPiece,
  call: CompletionCall,
  style: CompletionStyle,
): object {
  const { numLogprobs, returnsTokenIds } = call;
  const hasLogprobs = numLogprobs !== undefined && tokens.length > 0;
  const hasPromptIds = returnsTokenIds && promptTokenIds !== undefined;
  return {
    index,
    text,
    logprobs: hasLogprobs ? completionLogprobs(tokens, numLogprobs, style.words) : null,
    finish_reason: finish?.finishReason ?? null,
    stop_reason: finish?.stopReason ?? null,
    ...(hasPromptIds ? { prompt_token_ids: [...promptTokenIds] } : {}),
    ...(returnsTokenIds ? { token_ids: tokenIds } : {}),
  };
}

/** Finds the text offsets of the tokens of one choice. With `echo` the prompt's tokens come first. */
export class CompletionTokens {
  readonly #style: CompletionStyle;
  readonly #skipsSpecial: boolean;
  #offsets: TextOffsets;

  constructor({ sampling }: CompletionCall, style: CompletionStyle) {
    this.#style = style;
    this.#skipsSpecial = sampling.skipSpecialTokens !== false;
    this.#offsets = new TextOffsets(style.words);
  }

  /**
   * Returns the prompt's tokens. Offsets are moved up by the tokens that the tokenizer added and that are not in the
   * text.
   */
  prompt({ text, tokenIds }: EchoedPrompt, logprobs: readonly (TokenLogprob | null)[] | undefined): PlacedToken[] {
    const numChars = [...text].length;
    const offsets = new TextOffsets(this.#style.words);
    const rawOffsets = Array.from(tokenIds, (tokenId) => offsets.next(tokenId, true));
    const numAddedChars = Math.max(offsets.numChars - numChars, 0);
    this.#offsets = new TextOffsets(this.#style.words, numChars);
    return rawOffsets.map((offset, i) => ({
      token: logprobs?.[i] ?? { tokenId: tokenIds[i], logprob: null },
      offset: Math.max(offset - numAddedChars, 0),
    }));
  }

  /** Returns the tokens of the next part of the completion. */
  completion(logprobs: readonly TokenLogprob[]): PlacedToken[] {
    return logprobs.map((token) => ({
      token,
      offset: this.#offsets.next(token.tokenId, this.#isInText(token.tokenId)),
    }));
  }

  #isInText(tokenId: number): boolean {
    return !this.#skipsSpecial || this.#style.engine.detokenize([tokenId]) !== '';
  }
}
