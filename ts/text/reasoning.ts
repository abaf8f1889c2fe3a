import { charClass, type GrammarExpr, optional, repeat, sequence, until } from './grammar';

export const THINK_OPEN = '<think>';
export const THINK_CLOSE = '</think>';

/** Names of the one format that is known; the later ones are what other servers call it. Whether the prompt or the model opens the thought is seen, not told. */
export const REASONING_FORMATS = ['think', 'qwen3', 'deepseek_r1'] as const;

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

/** Most blanks before an opening marker and line breaks after a closing one in a text that is held to a grammar. */
const MAX_BLANKS = 2;

/** What may come before a text that is held to a grammar: the thought, so that it does not end up inside the grammar. */
export function thoughtGrammar(state: ThinkingState): GrammarExpr | undefined {
  const rest = sequence(until(THINK_CLOSE), repeat(charClass('\n'), 0, MAX_BLANKS));
  switch (state) {
    case 'before':
      return optional(sequence(repeat(charClass(' ', '\n'), 0, MAX_BLANKS), THINK_OPEN, rest));
    case 'inside':
      return rest;
    case 'after':
      return undefined;
  }
}

/** Counts the tokens between a thought's markers, by the bytes that each stands for: exact however the tokenizer cuts the markers. */
export class ThoughtCounter {
  #state: ThinkingState;
  #numMatched = 0;
  /** What the count was where the marker begins that is being matched. */
  #numBefore = 0;
  numTokens = 0;

  constructor(state: ThinkingState) {
    this.#state = state;
  }

  add(bytes: Uint8Array): void {
    if (this.#state === 'after') return;
    const wasInside = this.#state === 'inside';
    for (const [i, byte] of bytes.entries()) {
      if (this.#state === 'before') this.#takeBefore(byte);
      else if (this.#takeInside(byte, this.numTokens + (wasInside && i > 0 ? 1 : 0))) return;
    }
    if (wasInside) this.numTokens++;
  }

  #takeBefore(byte: number): void {
    if (byte === THINK_OPEN.charCodeAt(this.#numMatched)) {
      if (++this.#numMatched === THINK_OPEN.length) this.#enter('inside');
    } else if (this.#numMatched > 0 || !isBlank(byte)) {
      this.#enter('after');
    }
  }

  /** True at the end of the thought. */
  #takeInside(byte: number, numBefore: number): boolean {
    if (byte !== THINK_CLOSE.charCodeAt(this.#numMatched)) this.#numMatched = 0;
    if (byte !== THINK_CLOSE.charCodeAt(this.#numMatched)) return false;
    if (this.#numMatched === 0) this.#numBefore = numBefore;
    if (++this.#numMatched < THINK_CLOSE.length) return false;
    this.numTokens = this.#numBefore;
    this.#enter('after');
    return true;
  }

  #enter(state: ThinkingState): void {
    this.#state = state;
    this.#numMatched = 0;
  }
}

function isBlank(byte: number): boolean {
  return byte === 0x20 || (byte >= 0x09 && byte <= 0x0d);
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
  readonly #isVerbatim: boolean;

  /** @param isVerbatim The reasoning has its markers and the line breaks around it: all parts together are the completion. */
  constructor(state: ThinkingState, isVerbatim = false) {
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

  /** The first character that neither blank nor opening marker explains makes all of it text. */
  #takeBefore(char: string, parts: ReasoningPart[]): void {
    this.#held += char;
    if (char === THINK_OPEN[this.#numMatched]) {
      if (++this.#numMatched < THINK_OPEN.length) return;
      if (this.#isVerbatim) append(parts, 'reasoning', this.#held);
      this.#enter('inside', this.#isVerbatim ? 0 : 1);
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

  #takeVerbatim(char: string, parts: ReasoningPart[]): void {
    append(parts, 'reasoning', char);
    if (char !== THINK_CLOSE[this.#numMatched]) this.#numMatched = 0;
    if (char === THINK_CLOSE[this.#numMatched] && ++this.#numMatched === THINK_CLOSE.length) this.#enter('after', 0);
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
