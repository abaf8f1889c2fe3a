import type { DeltaEvent, GenerateEvent, TokenLogprob } from '../../../ts';
import type { CompletionHead } from './chat-response';
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

/** Tokens of all prompts of a request, up to the newest chunk. */
export interface TokenCount {
  prompt: number;
  completion: number;
}

interface ChunkOptions {
  head: CompletionHead;
  call: CompletionCall;
  style: CompletionStyle;
  prompt: EchoedPrompt;
  /** Shared by all prompts of the request. */
  count: TokenCount;
  /** Index of the first choice of this prompt. */
  firstIndex: number;
}

/**
 * Converts the events of one prompt to chunks. The finish reason comes with the last text, because clients measure the
 * time between chunks.
 */
export class CompletionChunks {
  readonly #options: ChunkOptions;
  /** By choice index. A choice has an entry once its first chunk exists. */
  readonly #tokens = new Map<number, CompletionTokens>();

  constructor(options: ChunkOptions) {
    this.#options = options;
  }

  /**
   * Returns the chunks of one group of events.
   * @param promptLogprobs Required with the first event if the request asks for them.
   */
  take(events: readonly GenerateEvent[], promptLogprobs: readonly (TokenLogprob | null)[] | undefined): string[] {
    const pieces = new Map<number, CompletionPiece>();
    for (const event of events) {
      const piece = pieces.get(event.index) ?? this.#startPiece(event.index, promptLogprobs);
      pieces.set(event.index, piece);
      if (event.type === 'delta') this.#addText(piece, event);
      else piece.finish = event;
    }
    return [...pieces]
      .filter(([, piece]) => this.#hasContent(piece))
      .map(([index, piece]) => this.#chunk(index, piece));
  }

  /** Starts a piece of a choice. The first piece of a choice holds the prompt if `echo` is set. */
  #startPiece(index: number, promptLogprobs: readonly (TokenLogprob | null)[] | undefined): CompletionPiece {
    const { call, style, prompt } = this.#options;
    if (this.#tokens.has(index)) return { text: '', tokens: [], tokenIds: [] };
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

  /** Tokens without text get a chunk only if it holds log-probabilities, requested token ids or running usage. */
  #hasContent({ text, tokens, tokenIds, finish }: CompletionPiece): boolean {
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
