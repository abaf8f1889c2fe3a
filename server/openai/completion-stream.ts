import type { DeltaEvent, GenerateEvent, TokenLogprob } from '../../ts';
import type { AnswerHead } from './chat-response';
import type { CompletionCall } from './completion-request';
import {
  type CompletionPiece,
  completionChunk,
  type CompletionStyle,
  CompletionTokens,
  type EchoedPrompt,
  pieceChoice,
} from './completion-response';
import { runningUsage } from './usage';

/** What a request has used so far, over all its prompts, as far as its chunks have told. */
export interface TokenCount {
  prompt: number;
  completion: number;
}

interface ChunkOptions {
  head: AnswerHead;
  call: CompletionCall;
  style: CompletionStyle;
  prompt: EchoedPrompt;
  /** Shared with the request's other prompts. */
  count: TokenCount;
  /** Of the prompt's first choice. */
  firstIndex: number;
}

/** Turns the events of one prompt's call into chunks. As clients measure the time between chunks, an end comes with the text that it is known with. */
export class CompletionChunks {
  readonly #options: ChunkOptions;
  /** By choice; there once it has begun. */
  readonly #tokens = new Map<number, CompletionTokens>();

  constructor(options: ChunkOptions) {
    this.#options = options;
  }

  /** `promptLogprobs` has to be there with the first event. */
  take(events: readonly GenerateEvent[], promptLogprobs: readonly (TokenLogprob | null)[] | undefined): string[] {
    const pieces = new Map<number, CompletionPiece>();
    for (const event of events) {
      const piece = pieces.get(event.index) ?? this.#begin(event.index, promptLogprobs);
      pieces.set(event.index, piece);
      if (event.type === 'delta') this.#addText(piece, event);
      else piece.finish = event;
    }
    return [...pieces]
      .filter(([, piece]) => this.#saysSomething(piece))
      .map(([index, piece]) => this.#chunk(index, piece));
  }

  /** A choice's first piece begins with its prompt, where that is repeated. */
  #begin(index: number, promptLogprobs: readonly (TokenLogprob | null)[] | undefined): CompletionPiece {
    const { call, style, prompt } = this.#options;
    const known = this.#tokens.get(index);
    if (known !== undefined) return { text: '', tokens: [], tokenIds: [] };
    const tokens = new CompletionTokens(call, style);
    this.#tokens.set(index, tokens);
    const echoed = call.isEcho
      ? { text: prompt.text, tokens: tokens.prompt(prompt, promptLogprobs) }
      : { text: '', tokens: [] };
    return { ...echoed, tokenIds: [], promptTokenIds: prompt.tokenIds };
  }

  #addText(piece: CompletionPiece, { index, textDelta, tokenIds, logprobs = [] }: DeltaEvent): void {
    this.#options.count.completion += tokenIds.length;
    piece.text += textDelta;
    piece.tokenIds.push(...tokenIds);
    piece.tokens.push(...this.#tokens.get(index)!.completion(logprobs));
  }

  /** Tokens without text have a chunk where something would be lost: what was said of them, or their count. */
  #saysSomething({ text, tokens, tokenIds, finish }: CompletionPiece): boolean {
    const { returnsTokenIds, usage } = this.#options.call;
    return (
      text !== '' ||
      finish !== undefined ||
      tokens.length > 0 ||
      (tokenIds.length > 0 && (returnsTokenIds || usage.isContinuous))
    );
  }

  #chunk(index: number, piece: CompletionPiece): string {
    const { head, call, style, count, firstIndex } = this.#options;
    const usage = call.usage.isContinuous ? runningUsage(count.prompt, count.completion) : undefined;
    return completionChunk(head, [pieceChoice(firstIndex + index, piece, call, style)], usage);
  }
}
