import type { GrammarExpr } from '../grammar';

/** Where a completion starts: before possible reasoning, inside, or after it. */
export type ThinkingState = 'before' | 'inside' | 'after';

export type ReasoningPart = { type: 'reasoning'; text: string } | { type: 'text'; text: string };

/** Splits a streamed completion into reasoning and text, in time linear in its length. */
export interface ReasoningSplitter {
  push: (text: string) => ReasoningPart[];
  /** @param isCut The completion is incomplete. */
  end: (isCut?: boolean) => ReasoningPart[];
}

/** A format in which a family of models writes reasoning. */
export interface ReasoningFormat {
  name: string;
  aliases: readonly string[];
  /** Whether a chat template belongs to this format. Formats are tested in the order of `REASONING_FORMATS`. */
  matchesTemplate: (mentions: (text: string) => boolean) => boolean;
  /** Texts that must stay in the completion even if the tokenizer calls them special. */
  markers: readonly string[];
  open: string;
  /** Ends the reasoning. NOTE: its first character must not occur in the rest of it. */
  close: string;
  /** Reasoning may open again after text. */
  isRepeated?: boolean;
  /** Returns the state at the end of a rendered prompt. */
  stateAfter: (prompt: string) => ThinkingState;
  /** Returns the state at the end of a message that is continued, which may stop anywhere in the reasoning. */
  stateWithin: (content: string) => ThinkingState;
  /**
   * Creates a splitter of a completion.
   * @param isVerbatim Keeps markers and line breaks, so that the parts add up to the completion.
   */
  split: (state: ThinkingState, isVerbatim: boolean) => ReasoningSplitter;
  /** The reasoning before a constrained text; undefined if there is none. */
  grammar: (state: ThinkingState) => GrammarExpr | undefined;
  /** What precedes an answer in constrained text, but not a tool call. */
  answerHeader?: string;
}

/** Appends text to the last part if the type is the same. */
export function append(parts: ReasoningPart[], type: ReasoningPart['type'], text: string): void {
  const last = parts.at(-1);
  if (text === '') return;
  if (last?.type === type) last.text += text;
  else parts.push({ type, text });
}
