import { charClass, type GrammarExpr, optional, repeat, sequence, until } from '../grammar';
import { append, type ReasoningFormat, type ReasoningPart, type ReasoningSplitter, type ThinkingState } from './format';

/** A format with one pair of markers. */
interface MarkedShape extends Pick<ReasoningFormat, 'name' | 'aliases' | 'matchesTemplate' | 'open' | 'close'> {
  /** Tags around the answer, which are dropped. NOTE: the first character of each must not occur in the rest of it. */
  answer?: AnswerTags;
}

interface AnswerTags {
  open: string;
  close: string;
}

/** Limit of blanks before the opening marker, and of line breaks after the closing one, in constrained text. */
const MAX_BLANKS = 2;

/**
 * Returns a format whose reasoning stands between two markers at the start of the completion. Whether the prompt or the
 * model opens the reasoning is detected.
 */
export function markedFormat({ answer, ...shape }: MarkedShape): ReasoningFormat {
  const { open, close } = shape;
  return {
    ...shape,
    markers: [open, close],
    stateAfter: (prompt) => {
      const tail = prompt.trimEnd();
      if (tail.endsWith(open)) return 'inside';
      return tail.endsWith(close) ? 'after' : 'before';
    },
    stateWithin: (content) => {
      if (content.includes(close)) return 'after';
      if (content.includes(open)) return 'inside';
      return content.trim() === '' ? 'before' : 'after';
    },
    split: (state, isVerbatim) =>
      isVerbatim || answer === undefined
        ? new MarkedSplitter(shape, state, isVerbatim)
        : new AnswerSplitter(new MarkedSplitter(shape, state, false), answer),
    grammar: (state) => reasoningGrammar(shape, state),
  };
}

function reasoningGrammar({ open, close }: AnswerTags, state: ThinkingState): GrammarExpr | undefined {
  const rest = sequence(until(close), repeat(charClass('\n'), 0, MAX_BLANKS));
  switch (state) {
    case 'before':
      return optional(sequence(repeat(charClass(' ', '\n'), 0, MAX_BLANKS), open, rest));
    case 'inside':
      return rest;
    case 'after':
      return undefined;
  }
}

/**
 * Line breaks next to the markers belong to neither part, because chat templates add them. If the reasoning never
 * closes, the rest of the completion is reasoning.
 */
class MarkedSplitter implements ReasoningSplitter {
  readonly #open: string;
  readonly #close: string;
  #state: ThinkingState;
  /**
   * Held-back text: blanks before a possible opening marker, part of a marker, or a line break before a possible
   * marker.
   */
  #held = '';
  #numMatched = 0;
  /** Number of line breaks to drop at the start of the next text. */
  #numBreaksToDrop: number;
  readonly #isVerbatim: boolean;

  constructor({ open, close }: AnswerTags, state: ThinkingState, isVerbatim: boolean) {
    this.#open = open;
    this.#close = close;
    this.#state = state;
    this.#isVerbatim = isVerbatim;
    this.#numBreaksToDrop = state === 'inside' && !isVerbatim ? 1 : 0;
  }

  push(text: string): ReasoningPart[] {
    const parts: ReasoningPart[] = [];
    for (let i = 0; i < text.length; i++) {
      if (this.#state === 'after') {
        this.#takeRest(text.slice(i), parts);
        break;
      }
      if (this.#state === 'before') this.#takeBefore(text[i], parts);
      else if (this.#isVerbatim) this.#takeVerbatim(text[i], parts);
      else this.#takeInside(text[i], parts);
    }
    return parts;
  }

  end(): ReasoningPart[] {
    const parts: ReasoningPart[] = [];
    append(parts, this.#state === 'inside' ? 'reasoning' : 'text', this.#held);
    this.#held = '';
    return parts;
  }

  /** The first character that is neither a blank nor part of the opening marker makes the held text ordinary text. */
  #takeBefore(char: string, parts: ReasoningPart[]): void {
    this.#held += char;
    if (char === this.#open[this.#numMatched]) {
      if (++this.#numMatched < this.#open.length) return;
      if (this.#isVerbatim) append(parts, 'reasoning', this.#held);
      this.#enter('inside', this.#isVerbatim ? 0 : 1);
    } else if (this.#numMatched > 0 || !isBlank(char)) {
      const text = this.#held;
      this.#enter('after', 0);
      append(parts, 'text', text);
    }
  }

  // NOTE: relies on a marker whose first character does not occur in the rest of it.
  #takeInside(char: string, parts: ReasoningPart[]): void {
    if (char === this.#close[this.#numMatched]) {
      this.#held += char;
      if (++this.#numMatched === this.#close.length) {
        // Drops the held text: the marker and at most one line break before it.
        this.#enter('after', 2);
      }
      return;
    }
    if (this.#numMatched > 0 || this.#held !== '') {
      append(parts, 'reasoning', this.#held);
      this.#held = '';
      this.#numMatched = 0;
      return this.#takeInside(char, parts);
    }
    if (char === '\n') {
      if (this.#numBreaksToDrop > 0) this.#numBreaksToDrop--;
      else this.#held = char;
    } else {
      append(parts, 'reasoning', char);
    }
    if (char !== '\n') this.#numBreaksToDrop = 0;
  }

  #takeVerbatim(char: string, parts: ReasoningPart[]): void {
    append(parts, 'reasoning', char);
    if (char !== this.#close[this.#numMatched]) this.#numMatched = 0;
    if (char === this.#close[this.#numMatched] && ++this.#numMatched === this.#close.length) this.#enter('after', 0);
  }

  #takeRest(text: string, parts: ReasoningPart[]): void {
    let start = 0;
    while (start < text.length && this.#numBreaksToDrop > 0 && text[start] === '\n') {
      start++;
      this.#numBreaksToDrop--;
    }
    if (start < text.length) this.#numBreaksToDrop = 0;
    append(parts, 'text', text.slice(start));
  }

  #enter(state: ThinkingState, numBreaksToDrop: number): void {
    this.#state = state;
    this.#held = '';
    this.#numMatched = 0;
    this.#numBreaksToDrop = numBreaksToDrop;
  }
}

/** Drops the tags around the answer: the opening one at the start of the text, and the closing one at its end. */
class AnswerSplitter implements ReasoningSplitter {
  readonly #reasoning: ReasoningSplitter;
  readonly #tags: AnswerTags;
  #place: 'start' | 'afterOpen' | 'inside' | 'untagged' = 'start';
  /** Text that may be a tag: blanks or a line break before it, its matched part, and blanks after it. */
  #held = '';
  /** Number of matched characters of the tag. */
  #numMatched = 0;

  constructor(reasoning: ReasoningSplitter, tags: AnswerTags) {
    this.#reasoning = reasoning;
    this.#tags = tags;
  }

  push(text: string): ReasoningPart[] {
    return this.#withoutTags(this.#reasoning.push(text));
  }

  end(isCut?: boolean): ReasoningPart[] {
    const parts = this.#withoutTags(this.#reasoning.end(isCut));
    if (this.#place !== 'inside' || !this.#isClosed()) this.#flush(parts);
    return parts;
  }

  #withoutTags(from: readonly ReasoningPart[]): ReasoningPart[] {
    const parts: ReasoningPart[] = [];
    for (const { type, text } of from) {
      if (type === 'reasoning' || this.#place === 'untagged') append(parts, type, text);
      else for (const char of text) this.#take(char, parts);
    }
    return parts;
  }

  #take(char: string, parts: ReasoningPart[]): void {
    switch (this.#place) {
      case 'start':
        return this.#takeStart(char, parts);
      case 'afterOpen':
        this.#place = 'inside';
        return char === '\n' ? undefined : this.#takeInside(char, parts);
      case 'inside':
        return this.#takeInside(char, parts);
      case 'untagged':
        return append(parts, 'text', char);
    }
  }

  #takeStart(char: string, parts: ReasoningPart[]): void {
    const { open } = this.#tags;
    this.#held += char;
    if (char === open[this.#numMatched]) {
      if (++this.#numMatched < open.length) return;
      this.#place = 'afterOpen';
      this.#held = '';
      this.#numMatched = 0;
    } else if (this.#numMatched > 0 || !isBlank(char)) {
      this.#place = 'untagged';
      this.#flush(parts);
    }
  }

  #takeInside(char: string, parts: ReasoningPart[]): void {
    const { close } = this.#tags;
    if (this.#isClosed() ? !isBlank(char) : char !== close[this.#numMatched]) {
      this.#flush(parts);
      if (char !== '\n' && char !== close[0]) return append(parts, 'text', char);
    }
    this.#held += char;
    if (char === close[this.#numMatched]) this.#numMatched++;
  }

  /** The closing tag is complete. Only blanks may follow it. */
  #isClosed(): boolean {
    return this.#numMatched === this.#tags.close.length;
  }

  #flush(parts: ReasoningPart[]): void {
    append(parts, 'text', this.#held);
    this.#held = '';
    this.#numMatched = 0;
  }
}

function isBlank(char: string): boolean {
  return char.trim() === '';
}
