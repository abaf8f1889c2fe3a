import { type CallContext, CONTEXT_KEYS } from './call-context';
import { CHAT_KEYS, type ChatOptions } from './chat';
import { toMessage } from './chat-session';
import { checkEngine, checkKnownKeys, checkNumber, checkObject } from './checks';
import type { Engine } from './engine';
import { CapstanError } from './errors';
import type { ChatEvent, Choice, Usage } from './events';
import { iteratedError } from './generation';
import { textOf } from './generation-streams';
import { type AnySchema, parseValue, type SchemaValue, toJsonSchema } from './standard-schema';
import { type ChatMessage, checkMessages, type Tool, type ToolCall } from './text/messages';

/** Context of one call of a function. */
export interface ToolContext {
  /** Id of the call. */
  callId: string;
  /** Aborted when the run is aborted, or after `toolTimeoutMs`. */
  signal: AbortSignal;
}

/** A function that the model may call. {@link defineTool} infers the type of its arguments. */
export interface ToolDefinition<S extends AnySchema = AnySchema> {
  /** What the function does, for the model. */
  description?: string;
  /** Schema of the arguments. Default: no arguments. */
  input?: S;
  /** Constrains the arguments to `input`. Default: true. */
  strict?: boolean;
  /**
   * Runs the function. The model gets its result: a string unchanged, any other value as JSON. It also gets the message
   * of an error.
   */
  execute(input: SchemaValue<S>, context: ToolContext): unknown;
}

/** Infers the type of the arguments of `execute` from `input`. */
export function defineTool<S extends AnySchema>(definition: ToolDefinition<S>): ToolDefinition<S> {
  return definition;
}

/** Options of {@link runTools}: those of a chat, the functions, and limits. `toolChoice` is for the first answer. */
export interface RunToolsOptions extends Omit<ChatOptions, 'tools' | 'n'>, CallContext {
  /** Functions by the names that the model calls them by. */
  tools: Readonly<Record<string, ToolDefinition>>;
  /** Maximum number of answers of the model, 1 to 1,000. Default: 10. */
  maxSteps?: number;
  /** Maximum number of calls in one answer that run. The model gets an error for further ones. Default: 32. */
  maxCallsPerStep?: number;
  /** Maximum number of calls that run at the same time. Default: 8. */
  maxParallelCalls?: number;
  /** Milliseconds after which a call fails. Default: 60,000. */
  toolTimeoutMs?: number;
}

const RUN_KEYS = [
  'tools',
  'maxSteps',
  'maxCallsPerStep',
  'maxParallelCalls',
  'toolTimeoutMs',
  ...CHAT_KEYS.filter((name) => name !== 'tools' && name !== 'n'),
  ...CONTEXT_KEYS,
];

/** The end of one call of a function. */
export interface ToolResultEvent {
  /** Kind of the event. */
  type: 'toolResult';
  /** Id of the call. */
  callId: string;
  /** Name of the function. */
  name: string;
  /** The parsed arguments. undefined: they are invalid. */
  input: unknown;
  /** What the model gets. */
  content: string;
  /** What the function returned. */
  output?: unknown;
  /** Why the call failed. */
  error?: unknown;
}

/** Events of {@link ToolRun}. */
export type ToolRunEvent = ChatEvent | ToolResultEvent;

/** The complete result of a run. */
export interface ToolRunResult {
  /** Text of the last answer. */
  text: string;
  /** The last answer. Its finish reason is `tool_calls` if `maxSteps` ended the run. */
  choice: Choice;
  /** The messages that the run added: answers and tool results. */
  messages: ChatMessage[];
  /** All calls, in the order in which they ended. */
  toolResults: ToolResultEvent[];
  /** Number of answers of the model. */
  numSteps: number;
  /** Tokens of all answers. */
  usage: Pick<Usage, 'promptTokens' | 'completionTokens' | 'totalTokens' | 'cachedTokens'>;
}

/** A running exchange between a model and functions. Starts when it is iterated or its result is requested. */
export class ToolRun implements AsyncIterable<ToolRunEvent> {
  readonly #run: AsyncGenerator<ToolRunEvent, ToolRunResult, undefined>;
  readonly #result: Promise<ToolRunResult>;
  #settle!: { resolve: (result: ToolRunResult) => void; reject: (error: unknown) => void };
  #isStarted = false;

  /** @internal */
  constructor(run: AsyncGenerator<ToolRunEvent, ToolRunResult, undefined>) {
    this.#run = run;
    this.#result = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    this.#result.catch(() => {});
  }

  /** Iterate at most once. Leaving the loop early aborts the run. */
  async *[Symbol.asyncIterator](): AsyncGenerator<ToolRunEvent, void, undefined> {
    if (this.#isStarted) throw iteratedError('result() for the whole run');
    this.#isStarted = true;
    try {
      for (;;) {
        const { done, value } = await this.#run.next();
        if (done === true) return this.#settle.resolve(value);
        yield value;
      }
    } catch (error) {
      this.#settle.reject(error);
      throw error;
    } finally {
      this.#settle.reject(new CapstanError('aborted', 'The run was aborted'));
      await this.#run.return(undefined as never);
    }
  }

  /** Iterates over the text of all answers, piece by piece, in place of the events. */
  get textStream(): AsyncIterable<string> {
    return textOf(this.#chatEvents());
  }

  /** Resolves with the complete result. Runs to the end if nothing iterates. */
  async result(): Promise<ToolRunResult> {
    if (!this.#isStarted) for await (const _ of this);
    return this.#result;
  }

  async *#chatEvents(): AsyncGenerator<ChatEvent, void, undefined> {
    for await (const event of this) if (event.type !== 'toolResult') yield event;
  }
}

/**
 * Lets a model call functions until it answers without a call. The calls of one answer run at the same time. The model
 * gets the result of each call, or its error: of an unknown function, invalid arguments, or `execute`.
 * @param input The conversation, or the text of a user message.
 */
export function runTools(engine: Engine, input: string | readonly ChatMessage[], options: RunToolsOptions): ToolRun {
  return new ToolRun(run(engine, input, options));
}

interface Limits {
  maxSteps: number;
  maxCallsPerStep: number;
  maxParallelCalls: number;
  toolTimeoutMs: number;
}

async function* run(
  engine: Engine,
  input: string | readonly ChatMessage[],
  options: RunToolsOptions,
): AsyncGenerator<ToolRunEvent, ToolRunResult, undefined> {
  checkEngine(engine);
  checkKnownKeys('options', checkObject('options', options), RUN_KEYS);
  const { tools, maxSteps = 10, maxCallsPerStep = 32, maxParallelCalls = 8, toolTimeoutMs = 60_000, ...chat } = options;
  const limits = checkLimits({ maxSteps, maxCallsPerStep, maxParallelCalls, toolTimeoutMs });
  const chatTools = toTools(tools);
  const first: readonly ChatMessage[] =
    typeof input === 'string' ? [{ role: 'user', content: input }] : checkMessages(input);
  const added: ChatMessage[] = [];
  const toolResults: ToolResultEvent[] = [];
  const usage = { promptTokens: 0, completionTokens: 0, totalTokens: 0, cachedTokens: 0 };
  for (let numSteps = 1; ; numSteps++) {
    const toolChoice = numSteps === 1 ? (chat.toolChoice ?? 'auto') : 'auto';
    const generation = engine.chat([...first, ...added], { ...chat, tools: chatTools, toolChoice });
    yield* generation;
    const { choices, usage: step } = await generation.result();
    const [choice] = choices;
    for (const name of Object.keys(usage) as (keyof typeof usage)[]) usage[name] += step[name];
    added.push(toMessage(choice));
    const isLast = choice.toolCalls.length === 0 || choice.finishReason === 'length' || numSteps >= maxSteps;
    if (isLast) return { text: choice.text, choice, messages: added, toolResults, numSteps, usage };
    const results: ToolResultEvent[] = [];
    for await (const result of runCalls(choice.toolCalls, tools, limits, chat.signal)) {
      results.push(result);
      yield result;
    }
    toolResults.push(...results);
    // In the order of the calls, so that the next prompt does not depend on which call was faster.
    for (const { id } of choice.toolCalls) {
      const result = results.find(({ callId }) => callId === id)!;
      added.push({ role: 'tool', toolCallId: id, name: result.name, content: result.content });
    }
  }
}

function checkLimits(limits: Limits): Limits {
  for (const [name, value] of Object.entries(limits))
    checkNumber(name, value, { min: 1, max: name === 'toolTimeoutMs' ? 2 ** 31 - 1 : 1000, isInteger: true });
  return limits;
}

const TOOL_FIELDS: readonly (keyof ToolDefinition)[] = ['description', 'input', 'strict', 'execute'];

function toTools(tools: RunToolsOptions['tools']): Tool[] {
  return Object.entries(checkObject('tools', tools) as RunToolsOptions['tools']).map(([name, definition]): Tool => {
    checkKnownKeys(`tools.${name}`, checkObject(`tools.${name}`, definition), TOOL_FIELDS);
    const { description, input, strict = true } = definition;
    const { execute } = definition as { execute?: unknown };
    if (typeof execute !== 'function') throw CapstanError.argument(`tools.${name}.execute`, 'a function', execute);
    const parameters = input === undefined ? undefined : toJsonSchema(`tools.${name}.input`, input);
    return { type: 'function', function: { name, description, parameters, strict } };
  });
}

/** Runs calls, up to `maxParallelCalls` at a time. Yields the results in the order in which they end. */
async function* runCalls(
  calls: readonly ToolCall[],
  tools: RunToolsOptions['tools'],
  { maxCallsPerStep, maxParallelCalls, toolTimeoutMs }: Limits,
  signal: AbortSignal | undefined,
): AsyncGenerator<ToolResultEvent, void, undefined> {
  const left = new AbortController();
  const signals = [left.signal, ...(signal === undefined ? [] : [signal])];
  const waiting = calls.map((call, i) => async (): Promise<ToolResultEvent> => {
    if (i >= maxCallsPerStep) return failed(call, undefined, `Expected at most ${maxCallsPerStep} calls at a time`);
    return runCall(call, tools, AbortSignal.any([...signals, AbortSignal.timeout(toolTimeoutMs)]));
  });
  const running = new Map<number, Promise<{ index: number; result: ToolResultEvent }>>();
  const startNext = (): void => {
    const index = calls.length - waiting.length;
    const next = waiting.shift();
    if (next !== undefined)
      running.set(
        index,
        next().then((result) => ({ index, result })),
      );
  };
  try {
    while (running.size < maxParallelCalls && waiting.length > 0) startNext();
    while (running.size > 0) {
      const { index, result } = await Promise.race(running.values());
      if (signal?.aborted === true) throw new CapstanError('aborted', 'The run was aborted', { cause: signal.reason });
      running.delete(index);
      startNext();
      yield result;
    }
  } finally {
    left.abort();
  }
}

/** Does not throw: the model gets the error. */
async function runCall(call: ToolCall, tools: RunToolsOptions['tools'], signal: AbortSignal): Promise<ToolResultEvent> {
  if (!Object.hasOwn(tools, call.name))
    return failed(call, undefined, `Expected one of the functions ${Object.keys(tools).join(', ')}, got ${call.name}`);
  const tool = tools[call.name];
  let input: unknown;
  try {
    input = await untilAborted(parseValue(tool.input ?? {}, call.arguments === '' ? '{}' : call.arguments), signal);
    const output = await untilAborted(Promise.resolve(tool.execute(input, { callId: call.id, signal })), signal);
    const content = typeof output === 'string' ? output : (JSON.stringify(output) ?? 'null');
    return { type: 'toolResult', callId: call.id, name: call.name, input, content, output };
  } catch (error) {
    return failed(call, input, error);
  }
}

/** A function that ignores its signal must not hold the run. */
async function untilAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  let onAbort!: () => void;
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(signal.reason as Error);
    if (signal.aborted) onAbort();
    else signal.addEventListener('abort', onAbort, { once: true });
  });
  try {
    return await Promise.race([work, aborted]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}

function failed({ id, name }: ToolCall, input: unknown, error: unknown): ToolResultEvent {
  const message = error instanceof Error ? error.message : String(error);
  return { type: 'toolResult', callId: id, name, input, content: `Error: ${message}`, error };
}
