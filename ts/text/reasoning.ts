export const THINK_OPEN = '<think>';
export const THINK_CLOSE = '</think>';

/** Where a completion begins: before a possible thought, inside one, or after. */
export type ThinkingState = 'before' | 'inside' | 'after';

export type ReasoningPart = { type: 'reasoning'; text: string } | { type: 'text'; text: string };

/** The state that the rendered prompt leaves the model in; `text` is the prompt, or the message that it has to go on with. */
export function thinkingStateAfter(text: string): ThinkingState {
  const tail = text.trimEnd();
  if (tail.endsWith(THINK_OPEN)) return 'inside';
  return tail.endsWith(THINK_CLOSE) ? 'after' : 'before';
}

/** The same for a message that is continued, which may stop anywhere in a thought. */
export function thinkingStateWithin(content: string): ThinkingState {
  if (content.includes(THINK_CLOSE)) return 'after';
  if (content.includes(THINK_OPEN)) return 'inside';
  return content.trim() === '' ? 'before' : 'after';
}

/**
 * Splits a completion into reasoning and text while it grows. Line breaks directly around the thought, which templates put there, belong
 * to neither. A thought that never closes is all reasoning.
 */
export class ReasoningMachine {
  #state: ThinkingState;
  /** Blanks before a possible opening, a possible marker, or line breaks that a marker may follow. */
  #held = '';
  #numMatched = 0;
  /** Line breaks still to drop at the start of what comes next. */
  #numBreaksToDrop: number;

  constructor(state: ThinkingState) {
    this.#state = state;
    this.#numBreaksToDrop = state === 'inside' ? 1 : 0;
  }

  push(text: string): ReasoningPart[] {
    const parts: ReasoningPart[] = [];
    for (let i = 0; i < text.length; i++) {
      if (this.#state === 'after') {
        this.#takeRest(text.slice(i), parts);
        break;
      }
      if (this.#state === 'before') this.#takeBefore(text[i], parts);
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

  /** The first character that neither blank nor opening marker explains makes all of it text. */
  #takeBefore(char: string, parts: ReasoningPart[]): void {
    this.#held += char;
    if (char === THINK_OPEN[this.#numMatched]) {
      if (++this.#numMatched === THINK_OPEN.length) this.#enter('inside', 1);
    } else if (this.#numMatched > 0 || char.trim() !== '') {
      const text = this.#held;
      this.#enter('after', 0);
      append(parts, 'text', text);
    }
  }

  // NOTE: as in the tool calls' machine, a marker's first character occurs nowhere else in it.
  #takeInside(char: string, parts: ReasoningPart[]): void {
    if (char === THINK_CLOSE[this.#numMatched]) {
      this.#held += char;
      if (++this.#numMatched === THINK_CLOSE.length) {
        // What is held besides the marker is at most one line break, which goes with it.
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

function append(parts: ReasoningPart[], type: ReasoningPart['type'], text: string): void {
  const last = parts.at(-1);
  if (text === '') return;
  if (last?.type === type) last.text += text;
  else parts.push({ type, text });
}
