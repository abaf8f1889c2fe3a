import { JsonScanner } from '../json-scanner';
import type { CallSink } from './format';
import type { CallInput, CallReading } from './input';
import { TextBuffer } from './text-buffer';

/** The form of a call as a JSON object. */
export interface JsonCallShape {
  /** Possible keys of the arguments. The first one that is present counts. */
  argumentsKeys: readonly string[];
  /** The object could be ordinary JSON. It is a call only if it has no other members and names one of the tools. */
  isUnmarked?: boolean;
}

const OTHER_KEYS = ['name', 'type', 'id'];

/** Reads a JSON object `{"name": …, "arguments": {…}}`. The arguments keep the model's text. */
export function* readJsonCall(input: CallInput, sink: CallSink, shape: JsonCallShape): CallReading {
  const scanner = new JsonScanner();
  const live = sink.isConstrained ? new StreamingCall(scanner, sink, shape) : undefined;
  const text = new TextBuffer();
  while (!scanner.isComplete) {
    const char = yield* input.peek();
    if (char === undefined || !scanner.push(char)) return false;
    text.add(char);
    input.skip();
    live?.follow(char, text);
  }
  if (live?.hasArguments !== true) {
    const call = toCall(text.toString(), scanner, shape);
    if (call === undefined || (shape.isUnmarked === true && !isTool(sink, call.name))) return false;
    if (live?.hasBegun !== true) sink.begin(call.name);
    sink.add(call.arguments);
  }
  sink.finish();
  return true;
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

export function isTool({ tools }: CallSink, name: string): boolean {
  return tools === undefined || tools.some((tool) => tool.function.name === name);
}

/** Emits a call while it is incomplete, if its name comes before its arguments. */
class StreamingCall {
  readonly #scanner: JsonScanner;
  readonly #sink: CallSink;
  readonly #shape: JsonCallShape;
  #isInArguments = false;
  hasBegun = false;
  hasArguments = false;

  constructor(scanner: JsonScanner, sink: CallSink, shape: JsonCallShape) {
    this.#scanner = scanner;
    this.#sink = sink;
    this.#shape = shape;
  }

  /** @param text The object so far. Its last character is `char`. */
  follow(char: string, text: TextBuffer): void {
    const { openKey } = this.#scanner;
    if (!this.hasBegun) return this.#beginIfNamed(text);
    const isInside = openKey !== undefined && this.#shape.argumentsKeys.includes(openKey);
    if (isInside && char === '{' && !this.#isInArguments && !this.hasArguments)
      this.#isInArguments = this.hasArguments = true;
    if (!this.#isInArguments) return;
    this.#sink.add(char);
    this.#isInArguments = isInside;
  }

  #beginIfNamed(text: TextBuffer): void {
    const last = this.#scanner.members.at(-1);
    if (last?.key !== 'name' || last.end === 0) return;
    const name: unknown = JSON.parse(text.toString().slice(last.start, last.end));
    if (typeof name !== 'string' || name === '') return;
    this.#sink.begin(name);
    this.hasBegun = true;
  }
}

function toCall(
  text: string,
  { members }: JsonScanner,
  { argumentsKeys, isUnmarked }: JsonCallShape,
): { name: string; arguments: string } | undefined {
  const object = JSON.parse(text) as Record<string, unknown>;
  const { name } = object;
  if (typeof name !== 'string' || name === '') return undefined;
  if (
    isUnmarked === true &&
    Object.keys(object).some((key) => !OTHER_KEYS.includes(key) && !argumentsKeys.includes(key))
  )
    return undefined;
  const key = argumentsKeys.find((candidate) => object[candidate] !== undefined && object[candidate] !== null);
  if (key === undefined) return { name, arguments: '{}' };
  const args = object[key];
  // Some models write the arguments as a string that contains JSON.
  if (typeof args === 'string') return isJsonObject(args) ? { name, arguments: args } : undefined;
  if (typeof args !== 'object' || Array.isArray(args)) return undefined;
  const { start, end } = members.findLast((member) => member.key === key)!;
  return { name, arguments: text.slice(start, end) };
}

function isJsonObject(text: string): boolean {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}
