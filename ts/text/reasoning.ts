import { charClass, type GrammarExpr, optional, repeat, sequence, until } from './grammar';

export const THINK_OPEN = '<think>';
export const THINK_CLOSE = '</think>';

/**
 * The name of the only supported format, and its aliases on other servers. Whether the prompt or the model opens the
 * reasoning is detected.
 */
export const REASONING_FORMATS = ['think', 'qwen3', 'deepseek_r1'] as const;

/** Where a completion starts: before possible reasoning, inside, or after it. */
export type ThinkingState = 'before' | 'inside' | 'after';

export type ReasoningPart = { type: 'reasoning'; text: string } | { type: 'text'; text: string };

/** Returns the state at the end of a rendered prompt. */
export function thinkingStateAfter(prompt: string): ThinkingState {
  const tail = prompt.trimEnd();
  if (tail.endsWith(THINK_OPEN)) return 'inside';
  return tail.endsWith(THINK_CLOSE) ? 'after' : 'before';
}

/** Returns the state at the end of a message that is continued, which may stop anywhere in the reasoning. */
export function thinkingStateWithin(content: string): ThinkingState {
  if (content.includes(THINK_CLOSE)) return 'after';
  if (content.includes(THINK_OPEN)) return 'inside';
  return content.trim() === '' ? 'before' : 'after';
}

/** Limit of blanks before the opening marker, and of line breaks after the closing one, in constrained text. */
const MAX_BLANKS = 2;

/** Returns the grammar of the reasoning before a constrained text, or undefined if there is none. */
export function reasoningGrammar(state: ThinkingState): GrammarExpr | undefined {
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

/**
 * Counts the tokens between the reasoning markers. Works on their bytes, so it does not matter how markers are
 * tokenized.
 */
export class ReasoningTokenCounter {
  #state: ThinkingState;
  #numMatched = 0;
  /** The count at the start of the marker that is being matched. */
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

  /** Returns true at the end of the reasoning. */
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
 * Splits a streamed completion into reasoning and text. Line breaks next to the markers belong to neither, because chat
 * templates add them. If the reasoning never closes, the rest of the completion is reasoning.
 */
export class ReasoningParser {
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

  /** @param isVerbatim Keeps markers and line breaks in the reasoning, so that the parts add up to the completion. */
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

  /** The first character that is neither a blank nor part of the opening marker makes the held text ordinary text. */
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

  // NOTE: relies on a marker whose first character does not occur in the rest of it.
  #takeInside(char: string, parts: ReasoningPart[]): void {
    if (char === THINK_CLOSE[this.#numMatched]) {
      this.#held += char;
      if (++this.#numMatched === THINK_CLOSE.length) {
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
