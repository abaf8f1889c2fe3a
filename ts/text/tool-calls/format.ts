import type { GrammarExpr } from '../grammar';
import type { ChatMessage, Tool, ToolCallInput } from '../messages';
import type { JsonDialect } from '../json-rules';
import type { SchemaRules } from '../json-schema';
import type { CallInput, CallReading } from './input';

/** The position in a completion: at the start, after text, or after a call; blanks do not count. */
export type CallPlace = 'start' | 'text' | 'afterCall';

/** Receives the calls that a format reads. */
export interface CallSink {
  /** A grammar guarantees that text which starts like a call is one. */
  readonly isConstrained: boolean;
  /** undefined: any function may be called. */
  readonly tools: readonly Tool[] | undefined;
  /** Whether a function of this name may be called. */
  knows(name: string): boolean;
  /** Reports a call whose name is known. The call begins later, with its arguments. */
  expect(): void;
  /** Begins a call. All following text belongs to it until it ends, well-formed or not. */
  begin(name: string): void;
  /** Appends JSON text to the arguments of the current call. */
  add(text: string): void;
  /** Ends the current call. Its arguments are `{}` if there are none so far. */
  finish(): void;
}

/** The syntax of a format's calls, for constrained generation. */
export interface CallSyntax {
  /** Before the first call. */
  before: GrammarExpr | string;
  /** Between two calls. */
  between: string;
  /** After the last call. */
  after: GrammarExpr | string;
  call: (tool: GrammarTool) => GrammarExpr;
  /** Marker that free text must not contain. NOTE: its first character must not occur in the rest of it. */
  open: string;
  /** Text may follow a call, and calls may follow that text. */
  allowsTextAfterCalls: boolean;
  /** Spelling of constants. Default: JSON. */
  dialect?: JsonDialect;
  /**
   * A message that starts with `first` consists of calls without a marker. After text, calls stand between `open` and
   * `close`.
   */
  unmarked?: { first: string; close: string };
  /** The end of a call ends the turn of the model. Default: a turn may hold several calls. */
  isSingle?: boolean;
  /** Returns the grammar of text and calls in a format whose text has markers, too. Default: text is plain. */
  withText?: (calls: GrammarExpr) => GrammarExpr;
}

/** One tool, for building the grammar of its calls. */
export interface GrammarTool {
  name: string;
  /** The arguments may be any object. */
  hasFreeArguments: boolean;
  rules: SchemaRules;
  /** Returns the grammar of the arguments as JSON. */
  json: () => GrammarExpr;
  /** @throws CapstanError `invalid_argument`, because the format cannot write the name of this tool. */
  rejectName: (expected: string) => never;
}

/** A format in which a family of models writes tool calls. */
export interface ToolCallFormat {
  name: string;
  aliases: readonly string[];
  /** Whether a chat template belongs to this format. Formats are tested in the order of `TOOL_CALL_FORMATS`. */
  matchesTemplate: (mentions: (text: string) => boolean) => boolean;
  /** Texts that must stay in the completion even if the tokenizer calls them special. */
  markers: readonly string[];
  /** Special tokens that end the turn of the model, whatever the model's files say. */
  turnEnds?: readonly string[];
  /** Special tokens that end a part of the turn, not the turn. In other formats they end it. */
  partEnds?: readonly string[];
  /** Ends a call whose text is malformed. Default: only the end of the completion does. */
  callEnd?: string;
  /** Whether calls may start with this character. */
  begins: (char: string, place: CallPlace) => boolean;
  /** Reads calls, starting with the first character. Returns false at a character that does not belong to a call. */
  read: (input: CallInput, sink: CallSink, place: CallPlace) => CallReading;
  syntax: CallSyntax;
  /** Creates the id of a call. Default: `call_` and hex digits. */
  newId?: () => string;
  /** Converts an id to the form that the chat templates of the format accept. */
  toPromptId?: (id: string) => string;
  /** Returns the text of the calls of a message, for chat templates that do not write them. */
  write?: (calls: readonly ToolCallInput[]) => string;
  /** Converts a conversation to the form that the chat templates of the format accept. */
  toPromptMessages?: (messages: readonly ChatMessage[]) => readonly ChatMessage[];
}
