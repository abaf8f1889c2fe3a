import type { NativeThinkingBudget } from './addon-types';
import { tokenizeBadWords } from './bad-words';
import type { GrammarCache } from './grammar-cache';
import type { Model } from './model/model';
import type { PreparedCall, UnfinishedCall } from './native-request';
import type { Reservation } from './queue-limiter';

/** The parts of a call that take time: its grammar, and the tokens of its bad words and reasoning markers. */
export class CallParts {
  readonly #model: Model;
  readonly #grammars: GrammarCache;
  /** Token ids of the reasoning markers, encoded on first use. */
  #thinkIds?: Promise<Pick<NativeThinkingBudget, 'openIds' | 'closeIds'>>;

  constructor(model: Model, grammars: GrammarCache) {
    this.#model = model;
    this.#grammars = grammars;
  }

  /** Awaits the prompt and the parts in parallel. */
  async complete(
    { plan, thinkingBudget, ...call }: UnfinishedCall,
    prompt: Int32Array | Promise<Int32Array>,
    reservation: Reservation,
  ): Promise<PreparedCall> {
    const { badWords } = call.sampling;
    const [promptTokenIds, grammar, badWordIds, markers] = await Promise.all([
      prompt,
      plan === undefined ? null : this.#grammars.get(plan, reservation.signal),
      badWords === undefined ? [] : tokenizeBadWords(this.#model.text, badWords, this.#model.config.spec.vocabSize),
      thinkingBudget === undefined ? null : this.#thinkingMarkers(),
    ]);
    return {
      ...call,
      promptTokenIds,
      grammar,
      badWords: badWordIds,
      thinkingBudget: thinkingBudget === undefined || markers === null ? null : { ...thinkingBudget, ...markers },
    };
  }

  #thinkingMarkers(): Promise<Pick<NativeThinkingBudget, 'openIds' | 'closeIds'>> {
    const { open, close } = this.#model.reasoningFormat!;
    this.#thinkIds ??= this.#model.text.encodeTexts([open, close]).then(
      ([openIds, closeIds]) => ({ openIds, closeIds }),
      (error: unknown) => {
        this.#thinkIds = undefined;
        throw error;
      },
    );
    return this.#thinkIds;
  }
}
