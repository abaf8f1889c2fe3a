import { type GrammarExpr, literal, repeat, sequence, until } from '../grammar';
import { append, type ReasoningFormat, type ReasoningPart, type ReasoningSplitter, type ThinkingState } from './format';
import { CHANNEL, CONSTRAIN, HarmonyHeader, MESSAGE, NEXT_MESSAGE, START } from './harmony-header';

export const [END, CALL, RETURN] = ['<|end|>', '<|call|>', '<|return|>'];
const ANALYSIS = `${CHANNEL}analysis${MESSAGE}`;
const FINAL = `${CHANNEL}final${MESSAGE}`;
const BODY_ENDS = [END, CALL, RETURN];
/** The recipient is the namespace of the tools of a request, and a name in it. */
export const FUNCTIONS = 'functions.';

/**
 * Harmony (gpt-oss): a completion is a list of messages `<|channel|>NAME<|message|>…<|end|>`. The channel `analysis` is
 * the reasoning; `final`, and `commentary` without a recipient, are the text. A message to a function is a tool call,
 * which stays in the text as it is for the parser of calls. So does a message to any other recipient, such as the
 * builtin tool `python`.
 */
export const harmony: ReasoningFormat = {
  name: 'harmony',
  aliases: ['openai_gptoss', 'gpt_oss'],
  matchesTemplate: (mentions) => mentions(`${CHANNEL}analysis`) && mentions(START),
  markers: [START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN],
  open: ANALYSIS,
  close: END,
  isRepeated: true,
  stateAfter: (prompt) => {
    if (prompt.endsWith(ANALYSIS)) return 'inside';
    return prompt.endsWith(FINAL) ? 'after' : 'before';
  },
  // Templates write the content into the final channel.
  stateWithin: () => 'after',
  split: (state, isVerbatim) => new HarmonySplitter(state, isVerbatim),
  grammar: reasoningGrammar,
  answerHeader: FINAL,
};

function reasoningGrammar(state: ThinkingState): GrammarExpr | undefined {
  const rest = sequence(until(END), literal(NEXT_MESSAGE));
  const messages = repeat(sequence(ANALYSIS, rest), 0, null);
  switch (state) {
    case 'before':
      return messages;
    case 'inside':
      return sequence(rest, messages);
    case 'after':
      return undefined;
  }
}

/** Where the messages of a channel go. A raw message keeps its header and its end. */
interface Target {
  type: ReasoningPart['type'];
  isRaw: boolean;
}

/** Text that does not have the form of a message stays in the message before it. After reasoning it is text. */
class HarmonySplitter implements ReasoningSplitter {
  readonly #isVerbatim: boolean;
  #place: 'header' | 'body';
  #target: Target;
  /** The marker that may have ended the body; '' if it was emitted. */
  #bodyEnd = '';
  #header = new HarmonyHeader();
  /** A marker that may end the body. */
  #held = '';
  #parts: ReasoningPart[] = [];
  /** The types of the parts so far. */
  readonly #types = new Set<ReasoningPart['type']>();
  /** The body is the first text of its message. */
  #isNewMessage = false;

  constructor(state: ThinkingState, isVerbatim: boolean) {
    this.#isVerbatim = isVerbatim;
    this.#place = state === 'before' ? 'header' : 'body';
    this.#target = { type: state === 'inside' ? 'reasoning' : 'text', isRaw: isVerbatim };
  }

  push(text: string): ReasoningPart[] {
    this.#feed(text);
    return this.#drain();
  }

  end(isCut = false): ReasoningPart[] {
    const held = this.#place === 'header' ? this.#header.text : this.#held;
    const isMarker = [START, CHANNEL].some((marker) => held.includes(marker));
    const isPartOfMarker = isCut && (this.#bodyEnd !== '' || held.trim().length > 1);
    const isEnd = this.#place === 'header' && this.#bodyEnd !== '' && held.trim() === '';
    if (!isMarker && !isPartOfMarker && !isEnd) {
      if (this.#place === 'header') this.#feed(this.#rejectHeader());
      this.#emit(this.#held);
    }
    this.#held = '';
    return this.#drain();
  }

  /** Takes a text, and again what turns out not to be a header. */
  #feed(text: string): void {
    const rest = [...text].reverse();
    for (let char = rest.pop(); char !== undefined; char = rest.pop()) {
      if (this.#place === 'body') this.#takeBody(char);
      else rest.push(...[...this.#takeHeader(char)].reverse());
    }
  }

  /** Returns text to take again. */
  #takeHeader(char: string): string {
    if (!this.#header.push(char)) return this.#rejectHeader();
    if (this.#header.isComplete) this.#beginBody();
    return '';
  }

  /** Returns the text that is not a header. It is read again as a body. */
  #rejectHeader(): string {
    const { text } = this.#header;
    if (this.#target.type === 'reasoning') {
      if (this.#isVerbatim) this.#emit(this.#bodyEnd);
      this.#target = { type: 'text', isRaw: this.#isVerbatim };
      this.#isNewMessage = true;
    } else {
      this.#emit(this.#bodyEnd);
    }
    this.#enterBody();
    return text;
  }

  #beginBody(): void {
    const { text, channel, recipient } = this.#header;
    this.#isNewMessage = true;
    const isReasoning = channel === 'analysis' && recipient?.startsWith(FUNCTIONS) !== true;
    this.#target = { type: isReasoning ? 'reasoning' : 'text', isRaw: this.#isVerbatim || recipient !== undefined };
    if (this.#isVerbatim) this.#emit(this.#bodyEnd + text);
    else if (this.#target.isRaw) this.#emit(text.includes(START) ? text.trimStart() : NEXT_MESSAGE + text);
    this.#enterBody();
  }

  #enterBody(): void {
    this.#place = 'body';
    this.#bodyEnd = '';
    this.#header = new HarmonyHeader();
  }

  #takeBody(char: string): void {
    const held = this.#held + char;
    const isPart = BODY_ENDS.some((end) => end.startsWith(held));
    if (!isPart) {
      this.#emit(this.#held);
      this.#held = '';
      if (held.length > char.length) this.#takeBody(char);
      else this.#emit(char);
    } else if (BODY_ENDS.includes(held)) {
      this.#place = 'header';
      this.#bodyEnd = held;
      this.#held = '';
      if (!this.#target.isRaw) return;
      this.#emit(held);
      this.#bodyEnd = '';
    } else {
      this.#held = held;
    }
  }

  /** Messages of one type are separated by a line break. */
  #emit(text: string): void {
    if (text === '') return;
    const { type, isRaw } = this.#target;
    if (this.#isNewMessage && !isRaw && this.#types.has(type)) append(this.#parts, type, '\n');
    this.#isNewMessage = false;
    this.#types.add(type);
    append(this.#parts, type, text);
  }

  #drain(): ReasoningPart[] {
    const parts = this.#parts;
    this.#parts = [];
    return parts;
  }
}
