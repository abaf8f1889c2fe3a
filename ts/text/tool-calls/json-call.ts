import { type JsonMember, JsonScanner } from '../json-scanner';
import type { CallSink } from './format';
import type { CallInput, CallReading } from './input';
import { TextBuffer } from './text-buffer';

/** The form of a call as a JSON object. */
export interface JsonCallShape {
  /** Key of the name of the function. Default: `name`. */
  nameKey?: string;
  /** Possible keys of the arguments. The first member with one of them counts. */
  argumentsKeys: readonly string[];
  /** The object could be ordinary JSON. It is a call only if it has no other members. */
  isUnmarked?: boolean;
}

const OTHER_KEYS = ['name', 'type', 'id'];

/** Reads a JSON object `{"name": …, "arguments": {…}}`. The arguments keep the model's text. */
export function* readJsonCall(input: CallInput, sink: CallSink, shape: JsonCallShape): CallReading {
  const call = new JsonCall(sink, shape);
  while (!call.isComplete) {
    const char = yield* input.next();
    if (char !== undefined && call.push(char)) continue;
    if (char !== undefined) input.unskip(char);
    // Whatever follows complete arguments does not change the call.
    return call.hasFinished;
  }
  return call.end();
}

/** Reads a JSON object as the arguments of the current call. */
export function* readJsonArguments(input: CallInput, sink: CallSink): CallReading {
  const scanner = new JsonScanner();
  yield* input.blanks();
  while (!scanner.isComplete) {
    const char = yield* input.peek();
    if (char === undefined || !scanner.push(char)) return false;
    input.skip();
    sink.add(char);
  }
  sink.finish();
  return true;
}

/** A call that is emitted while it is read. It begins with its name, or with its arguments if it has no marker. */
class JsonCall {
  readonly #scanner = new JsonScanner();
  readonly #sink: CallSink;
  readonly #shape: JsonCallShape;
  /** The object so far. */
  readonly #text = new TextBuffer();
  #name: string | undefined;
  #hasBegun = false;
  #isInArguments = false;
  /** Arguments that came before the name. */
  #early: string | undefined;
  hasFinished = false;

  constructor(sink: CallSink, shape: JsonCallShape) {
    this.#sink = sink;
    this.#shape = shape;
  }

  get isComplete(): boolean {
    return this.#scanner.isComplete;
  }

  /** Returns false if the text is no JSON object or no call of a known tool. */
  push(char: string): boolean {
    const scanner = this.#scanner;
    const numKeys = scanner.members.length;
    const openBefore = scanner.openKey;
    if (!scanner.push(char)) return false;
    this.#text.add(char);
    const member = scanner.members.at(-1);
    if (member === undefined || this.hasFinished) return true;
    if (scanner.members.length > numKeys) return this.#isAllowed(member.key);
    const hasStarted = openBefore === undefined && scanner.openKey !== undefined;
    if (hasStarted && char === '{' && this.#name !== undefined && this.#isArguments(member.key)) this.#beginArguments();
    if (this.#isInArguments) this.#sink.add(char);
    return openBefore === undefined || scanner.openKey !== undefined || this.#endValue(member);
  }

  /** Ends a complete object. */
  end(): boolean {
    if (this.#name === undefined) return false;
    this.#begin();
    if (!this.hasFinished) this.#finish();
    return true;
  }

  #isAllowed(key: string): boolean {
    return this.#shape.isUnmarked !== true || OTHER_KEYS.includes(key) || this.#isArguments(key);
  }

  #isArguments(key: string): boolean {
    return this.#shape.argumentsKeys.includes(key);
  }

  #begin(): void {
    if (!this.#hasBegun) this.#sink.begin(this.#name!);
    this.#hasBegun = true;
  }

  #beginArguments(): void {
    this.#begin();
    this.#isInArguments = true;
  }

  #finish(): void {
    this.#isInArguments = false;
    this.hasFinished = true;
    this.#sink.finish();
  }

  #endValue({ key, start, end }: JsonMember): boolean {
    if (this.#isInArguments) this.#finish();
    else if (key === (this.#shape.nameKey ?? 'name') && this.#name === undefined)
      return this.#endName(this.#text.toString().slice(start, end));
    else if (this.#isArguments(key) && this.#early === undefined)
      return this.#endWholeArguments(this.#text.toString().slice(start, end));
    return true;
  }

  #endName(json: string): boolean {
    const name: unknown = JSON.parse(json);
    if (typeof name !== 'string' || name === '' || !this.#sink.knows(name)) return false;
    this.#name = name;
    if (this.#shape.isUnmarked !== true || this.#sink.isConstrained) this.#begin();
    else this.#sink.expect();
    if (this.#early !== undefined) this.#emitWhole(this.#early);
    return true;
  }

  /** Takes arguments that are not an object, or that came before the name. */
  #endWholeArguments(json: string): boolean {
    const args = wholeArguments(json);
    if (this.#shape.isUnmarked === true && !isJsonObject(args)) return false;
    if (this.#name === undefined) this.#early = args;
    else this.#emitWhole(args);
    return true;
  }

  #emitWhole(args: string): void {
    this.#begin();
    this.#sink.add(args);
    this.#finish();
  }
}

/** Some models write the arguments as a string that contains JSON, and null for none. */
function wholeArguments(json: string): string {
  if (json === 'null') return '{}';
  const value: unknown = json.startsWith('"') ? JSON.parse(json) : undefined;
  return typeof value === 'string' && isJsonObject(value) ? value : json;
}

function isJsonObject(text: string): boolean {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}
