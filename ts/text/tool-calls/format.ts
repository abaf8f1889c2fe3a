import type { GrammarExpr } from '../grammar';
import type { Tool } from '../messages';
import type { JsonDialect } from '../json-rules';
import type { SchemaRules } from '../json-schema';
import type { CallInput, CallReading } from './input';

/** Where in a completion a stretch of calls may begin: only blanks so far, after text, or nothing but blanks since a call. */
export type CallPlace = 'start' | 'text' | 'afterCall';

/** What a format's reader tells of the calls that it reads. */
export interface CallSink {
  /** Calls go out while they grow, as the text cannot turn out to be none. */
  readonly isConstrained: boolean;
  /** Undefined where any function may be called. */
  readonly tools: readonly Tool[] | undefined;
  begin(name: string): void;
  /** JSON text of the arguments of the call begun last, from where they stand. */
  add(text: string): void;
  /** A call without arguments so far has `{}`. */
  finish(): void;
}

/** How a format's calls are written when a grammar holds the model to them. */
export interface WrittenCalls {
  /** Around all calls, and between two. */
  before: GrammarExpr | string;
  between: string;
  after: GrammarExpr | string;
  call: (tool: WrittenTool) => GrammarExpr;
  /** What no free text has in it, as a call must follow; its first character comes nowhere else in it. */
  open: string;
  /** Text may follow calls, and calls that text again. */
  isAmongText: boolean;
  /** How values are spelt; default JSON. */
  dialect?: JsonDialect;
  /** Without marker a message that begins with this character is calls; in free text the marker is put before, the other behind. */
  bare?: { first: string; close: string };
}

/** One tool as a grammar is written for it. */
export interface WrittenTool {
  name: string;
  /** Its arguments may be anything. */
  isLoose: boolean;
  rules: SchemaRules;
  /** Of the arguments, as JSON. */
  json: () => GrammarExpr;
  /** @throws CapstanError `invalid_argument`: the format cannot write this tool's name. */
  refuseName: (reason: string) => never;
}

/** How a family of models writes tool calls. */
export interface ToolCallFormat {
  name: string;
  /** Other names that people know it by. */
  aliases: readonly string[];
  /** Whether a chat template is of a model that writes so; asked in the order of the table. */
  isWrittenBy: (mentions: (text: string) => boolean) => boolean;
  /** Texts that tokenizers may call special and that must be seen nevertheless. */
  markers: readonly string[];
  /** Whether calls may begin with this character. */
  begins: (char: string, place: CallPlace) => boolean;
  /** Reads calls from the first character of what may be some: true if they were. */
  read: (input: CallInput, sink: CallSink, place: CallPlace) => CallReading;
  written: WrittenCalls;
  /** Makes the id of a call; by default `call_` and hex digits. */
  newId?: () => string;
  /** An id as the format's templates take it. */
  toPromptId?: (id: string) => string;
}
