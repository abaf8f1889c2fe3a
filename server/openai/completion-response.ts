import type { Choice, Engine, FinishEvent, GenerationResult, TokenLogprob, Usage } from '../../ts';
import type { AnswerHead } from './chat-response';
import type { CompletionCall } from './completion-request';
import { completionLogprobs, type PlacedToken, promptLogprobs, TextOffsets, type TokenWords } from './logprobs';
import { addUsages, type WireUsage, wireUsage } from './usage';

/** What is told of tokens. */
export interface CompletionStyle {
  engine: Pick<Engine, 'detokenize'>;
  words: TokenWords;
  hasPrefixCache: boolean;
}

/** A prompt as an answer repeats it. */
export interface EchoedPrompt {
  text: string;
  tokenIds: Int32Array;
}

export function textCompletion(
  head: AnswerHead,
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

/** One chunk of a stream; without choices it is the usage chunk. */
export function completionChunk(head: AnswerHead, choices: readonly object[], usage?: WireUsage): string {
  return JSON.stringify({
    id: head.id,
    object: 'text_completion',
    created: head.created,
    model: head.model,
    choices,
    ...(usage === undefined ? {} : { usage }),
  });
}

/** The choices of one prompt; `firstIndex` counts those of the prompts before it. */
export function completionChoices(
  call: CompletionCall,
  { choices, promptTokenIds, promptLogprobs: ofPrompt }: GenerationResult,
  prompt: EchoedPrompt,
  firstIndex: number,
  style: CompletionStyle,
): object[] {
  return choices.map((choice) => {
    const reader = new CompletionTokens(call, style);
    const echoed = call.isEcho ? reader.prompt(prompt, ofPrompt) : [];
    const tokens = [...echoed, ...reader.completion(choice.logprobs ?? [])];
    return {
      index: firstIndex + choice.index,
      text: call.isEcho ? prompt.text + choice.text : choice.text,
      logprobs: call.numLogprobs === undefined ? null : completionLogprobs(tokens, call.numLogprobs, style.words),
      finish_reason: choice.finishReason,
      stop_reason: choice.stopReason,
      prompt_logprobs: ofPrompt === undefined ? null : promptLogprobs(ofPrompt, style.words),
      ...(call.returnsTokenIds ? tokenIdFields(choice, promptTokenIds) : {}),
    };
  });
}

function tokenIdFields({ tokenIds }: Choice, promptTokenIds: Int32Array): object {
  return { token_ids: [...tokenIds], prompt_token_ids: [...promptTokenIds] };
}

/** A part of one choice, while it grows. */
export interface CompletionPiece {
  text: string;
  /** With log-probabilities: its tokens. */
  tokens: PlacedToken[];
  tokenIds: number[];
  /** Of a choice's first piece. */
  promptTokenIds?: Int32Array;
  finish?: FinishEvent;
}

export function pieceChoice(
  index: number,
  { text, tokens, tokenIds, promptTokenIds, finish }: CompletionPiece,
  call: CompletionCall,
  style: CompletionStyle,
): object {
  return {
    index,
    text,
    logprobs:
      call.numLogprobs === undefined || tokens.length === 0
        ? null
        : completionLogprobs(tokens, call.numLogprobs, style.words),
    finish_reason: finish?.finishReason ?? null,
    stop_reason: finish?.stopReason ?? null,
    ...(call.returnsTokenIds
      ? { ...(promptTokenIds === undefined ? {} : { prompt_token_ids: [...promptTokenIds] }), token_ids: tokenIds }
      : {}),
  };
}

/** The tokens of one choice with their places in its text, the prompt's first where it is repeated. */
export class CompletionTokens {
  readonly #style: CompletionStyle;
  readonly #skipsSpecial: boolean;
  #offsets: TextOffsets;

  constructor({ sampling }: CompletionCall, style: CompletionStyle) {
    this.#style = style;
    this.#skipsSpecial = sampling.skipSpecialTokens !== false;
    this.#offsets = new TextOffsets(style.words);
  }

  /** Where tokens that the tokenizer added at the front are not in the text, the others move up. */
  prompt({ text, tokenIds }: EchoedPrompt, logprobs: readonly (TokenLogprob | null)[] | undefined): PlacedToken[] {
    const numChars = [...text].length;
    const offsets = new TextOffsets(this.#style.words);
    const places = Array.from(tokenIds, (tokenId) => offsets.next(tokenId, true));
    const numAdded = Math.max(offsets.numChars - numChars, 0);
    this.#offsets = new TextOffsets(this.#style.words, numChars);
    return places.map((place, i) => ({
      token: logprobs?.[i] ?? { tokenId: tokenIds[i], logprob: null },
      offset: Math.max(place - numAdded, 0),
    }));
  }

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
