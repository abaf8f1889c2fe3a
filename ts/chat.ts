import type { ChoiceReaderOptions } from './choice-reader';
import { checkBoolean, checkKnownKeys, checkNumber, checkObject, checkOneOf, checkString } from './checks';
import { CapstanError } from './errors';
import { eitherPlan, type GrammarPlan, grammarPlan, prefixedPlan, reasonedPlan } from './grammar-cache';
import type { Model } from './model/model';
import { SAMPLING_KEYS, type SamplingParams } from './sampling';
import { planStructuredOutput } from './structured-output';
import { checkTools, type Tool } from './text/messages';
import { REASONING_EFFORTS, type ReasoningEffort, type ReasoningFormat, type ThinkingState } from './text/reasoning';
import type { Conversation, Messages } from './text/text-service';
import type { ToolCallFormat, ToolCallGrammarOptions } from './text/tool-calls';

/**
 * Whether the model calls tools:
 *
 * - `'auto'`: the model decides.
 * - `'none'`: no calls. The tools are left out of the prompt.
 * - `'required'`: at least one call.
 * - `{ name }`: exactly one call of this function.
 */
export type ToolChoice =
  | 'auto'
  | 'none'
  | 'required'
  | {
      /** Name of one of the `tools`. */
      name: string;
    };

/** Options of {@link Engine.chat}: sampling parameters, tools, and variables of the chat template. */
export interface ChatOptions extends SamplingParams {
  /**
   * Functions that the model may call. Arguments are constrained to the schema of a tool that is `strict`, and of
   * every tool if `toolChoice` is `'required'` or a name.
   */
  tools?: readonly Tool[];
  /**
   * Default: `'auto'`. With `structuredOutput`, the choice then consists of calls, or it is a text of that output. A
   * choice that must call tools ignores `structuredOutput`.
   */
  toolChoice?: ToolChoice;
  /** If false, the choice ends after its first complete tool call. Default: true. */
  parallelToolCalls?: boolean;
  /** If false, reasoning stays in the text with its markers. Default: true. */
  separateReasoning?: boolean;
  /**
   * How much the model reasons. Sets the variables by which chat templates know it, such as `enable_thinking` and
   * `reasoning_effort`, which `templateKwargs` overrides. Default: that of the template.
   */
  reasoningEffort?: ReasoningEffort;
  /**
   * Maximum number of reasoning tokens, after which the engine writes the closing marker; 0 = no reasoning. Has no
   * effect if the model has no reasoning format or the prompt closes the reasoning. Default: no limit.
   */
  thinkingBudget?: number;
  /** Ends the prompt with the start of an assistant message. Default: true unless `continueFinalMessage` is true. */
  addGenerationPrompt?: boolean;
  /** Continues the last message instead of starting a new one. Default: false. */
  continueFinalMessage?: boolean;
  /**
   * Runs the tokenizer's post-processor on the rendered prompt, which adds tokens such as BOS. Default: false, because
   * chat templates write these tokens themselves.
   */
  addSpecialTokens?: boolean;
  /** Further variables of the template, in its spelling, such as `{ enable_thinking: false }`. */
  templateKwargs?: Readonly<Record<string, unknown>>;
}

/** Names of the options of a chat. NOTE: a record, so that a field missing here does not compile. */
export const CHAT_KEYS: readonly string[] = [
  ...SAMPLING_KEYS,
  ...Object.keys({
    tools: true,
    toolChoice: true,
    parallelToolCalls: true,
    separateReasoning: true,
    reasoningEffort: true,
    thinkingBudget: true,
    addGenerationPrompt: true,
    continueFinalMessage: true,
    addSpecialTokens: true,
    templateKwargs: true,
  } satisfies Record<Exclude<keyof ChatOptions, keyof SamplingParams>, true>),
];

/** A conversation, tokenized and planned for the engine. */
export interface PreparedChat {
  promptTokenIds: Int32Array;
  sampling: SamplingParams;
  readerOptions: ChoiceReaderOptions;
  /** The grammar of the completion, reasoning included. */
  plan: GrammarPlan | undefined;
  /** undefined: no limit, or no reasoning to limit. */
  thinkingBudget: { budget: number; isInside: boolean } | undefined;
}

/**
 * Returns the text of the prompt.
 * @throws CapstanError `invalid_argument`, or `template_error` from the template.
 */
export function renderChat(
  { text }: Model,
  messages: Messages,
  options: ChatOptions,
  signal?: AbortSignal,
): Promise<string> {
  return text.render(toConversation(messages, checkChatOptions(options)), signal);
}

/**
 * @param maxModelLen A longer prompt is refused, unless it is to be truncated.
 * @param signal Aborted when the caller no longer waits.
 * @throws CapstanError `invalid_argument`, `context_length_exceeded`, or `template_error` from the template.
 */
export async function prepareChat(
  model: Model,
  messages: Messages,
  options: ChatOptions,
  maxModelLen: number,
  signal: AbortSignal,
): Promise<PreparedChat> {
  const checked = checkChatOptions(options);
  const { tools, toolChoice, sampling, addSpecialTokens, ...rest } = checked;
  const { promptTokenIds, thinking } = await model.text.encodeChat(
    toConversation(messages, checked),
    { addSpecialTokens, maxModelLen, isTruncated: sampling.truncatePrompt !== undefined },
    signal,
  );
  const reasoning = thinking === undefined ? undefined : { format: model.reasoningFormat!, state: thinking };
  const answer = planAnswer(sampling, reasoning);
  const calls =
    tools === undefined
      ? undefined
      : planToolCalls(model.toolCallFormat, tools, toolChoice, rest.parallelToolCalls, answer);
  const plan = calls === undefined ? answer : calls.plan;
  return {
    promptTokenIds,
    sampling,
    readerOptions: {
      ...calls?.readerOptions,
      ...(reasoning === undefined
        ? {}
        : {
            reasoning,
            keepsReasoningInText: !rest.separateReasoning,
            tokenBytes: (id: number) => model.tokens.textBytes(id),
          }),
    },
    plan: plan === undefined ? undefined : afterReasoning(plan, reasoning),
    thinkingBudget:
      rest.thinkingBudget === undefined || thinking === undefined || thinking === 'after'
        ? undefined
        : { budget: rest.thinkingBudget, isInside: thinking === 'inside' },
  };
}

function toConversation(
  messages: Messages,
  { tools, addGenerationPrompt, continueFinalMessage, reasoningEffort, templateKwargs }: CheckedOptions,
): Conversation {
  return {
    messages,
    ...(tools === undefined ? {} : { tools }),
    ...(addGenerationPrompt === undefined ? {} : { addGenerationPrompt }),
    ...(continueFinalMessage === undefined ? {} : { continueFinalMessage }),
    ...(reasoningEffort === undefined ? {} : { reasoningEffort }),
    ...(templateKwargs === undefined ? {} : { templateKwargs }),
  };
}

/** Reasoning that is parsed, and where the completion starts. */
interface Reasoning {
  format: ReasoningFormat;
  state: ThinkingState;
}

function planAnswer({ structuredOutput }: SamplingParams, reasoning: Reasoning | undefined): GrammarPlan | undefined {
  if (structuredOutput === undefined) return undefined;
  const plan = planStructuredOutput(structuredOutput);
  const header = reasoning?.state === 'after' ? undefined : reasoning?.format.answerHeader;
  return header === undefined ? plan : prefixedPlan(plan, header);
}

function afterReasoning(plan: GrammarPlan, reasoning: Reasoning | undefined): GrammarPlan {
  return reasoning === undefined || reasoning.state === 'after'
    ? plan
    : reasonedPlan(plan, reasoning.format.name, reasoning.state);
}

interface ToolCallPlan {
  readerOptions: ChoiceReaderOptions;
  plan?: GrammarPlan;
}

/**
 * Required calls, strict tools and calls instead of an answer need a grammar, which also limits the number of calls.
 * Otherwise calls are parsed from free text.
 */
function planToolCalls(
  format: ToolCallFormat | undefined,
  tools: readonly Tool[],
  toolChoice: Exclude<ToolChoice, 'none'>,
  parallel: boolean,
  answer: GrammarPlan | undefined,
): ToolCallPlan {
  if (format === undefined) {
    if (toolChoice === 'auto') return { readerOptions: {}, ...(answer === undefined ? {} : { plan: answer }) };
    throw CapstanError.argument(
      'toolChoice',
      "'auto' or 'none', because the chat template shows no tool call format (set the engine option toolCallFormat)",
      nameOf(toolChoice),
    );
  }
  if (toolChoice !== 'auto') {
    const only = typeof toolChoice === 'object' ? { only: toolChoice.name } : {};
    return {
      readerOptions: {
        toolCallFormat: format,
        toolCallOptions: { tools, isConstrained: true },
        isCallNamed: typeof toolChoice === 'object',
      },
      plan: callGrammarPlan(format, tools, { mode: 'required', parallel, ...only }),
    };
  }
  if (answer !== undefined)
    return {
      readerOptions: { toolCallFormat: format, toolCallOptions: { tools, isCallsOrText: true } },
      plan: eitherPlan(callGrammarPlan(format, tools, { mode: 'chosen', parallel }), answer),
    };
  if (!tools.some((tool) => tool.function.strict === true))
    return { readerOptions: { toolCallFormat: format, toolCallOptions: { tools }, stopsAfterCall: !parallel } };
  return {
    readerOptions: { toolCallFormat: format, toolCallOptions: { tools, isConstrained: true } },
    plan: callGrammarPlan(format, tools, { mode: 'strict', parallel }),
  };
}

function callGrammarPlan(format: ToolCallFormat, tools: readonly Tool[], options: ToolCallGrammarOptions): GrammarPlan {
  const definitions = tools.map(({ type, function: { name, parameters, strict } }): Tool => ({
    type,
    function: { name, parameters, strict },
  }));
  return grammarPlan({ kind: 'tools', format: format.name, tools: definitions, options }, 'tools');
}

function nameOf(choice: ToolChoice): string {
  return typeof choice === 'object' ? choice.name : choice;
}

type CheckedOptions = Pick<
  ChatOptions,
  'addGenerationPrompt' | 'continueFinalMessage' | 'templateKwargs' | 'thinkingBudget' | 'reasoningEffort'
> & {
  /** undefined if the list is empty or the choice is 'none'. */
  tools: readonly Tool[] | undefined;
  toolChoice: Exclude<ToolChoice, 'none'>;
  parallelToolCalls: boolean;
  separateReasoning: boolean;
  addSpecialTokens: boolean;
  sampling: SamplingParams;
};

function checkChatOptions(options: ChatOptions): CheckedOptions {
  checkKnownKeys('options', checkObject('options', options), CHAT_KEYS);
  const {
    tools,
    toolChoice = 'auto',
    parallelToolCalls = true,
    separateReasoning = true,
    reasoningEffort,
    thinkingBudget,
    addGenerationPrompt,
    continueFinalMessage,
    addSpecialTokens = false,
    templateKwargs,
    ...sampling
  } = options;
  const checkedTools = tools === undefined ? [] : checkTools(tools);
  const choice = checkToolChoice(toolChoice, checkedTools);
  if (addGenerationPrompt !== undefined) checkBoolean('addGenerationPrompt', addGenerationPrompt);
  if (continueFinalMessage !== undefined) checkBoolean('continueFinalMessage', continueFinalMessage);
  if (addGenerationPrompt === true && continueFinalMessage === true)
    throw CapstanError.argument('addGenerationPrompt', 'false with continueFinalMessage', true);
  if (templateKwargs !== undefined) checkObject('templateKwargs', templateKwargs);
  if (reasoningEffort !== undefined) checkOneOf('reasoningEffort', reasoningEffort, REASONING_EFFORTS);
  if (thinkingBudget !== undefined)
    checkNumber('thinkingBudget', thinkingBudget, { min: 0, max: 2 ** 31 - 1, isInteger: true });
  const areUsed = checkedTools.length > 0 && choice !== 'none';
  return {
    tools: areUsed ? checkedTools : undefined,
    toolChoice: choice === 'none' ? 'auto' : choice,
    parallelToolCalls: checkBoolean('parallelToolCalls', parallelToolCalls),
    separateReasoning: checkBoolean('separateReasoning', separateReasoning),
    addSpecialTokens: checkBoolean('addSpecialTokens', addSpecialTokens),
    addGenerationPrompt,
    continueFinalMessage,
    templateKwargs,
    reasoningEffort,
    thinkingBudget,
    sampling,
  };
}

function checkToolChoice(choice: ToolChoice, tools: readonly Tool[]): ToolChoice {
  if (typeof choice === 'object' && choice !== null) {
    const name = checkString('toolChoice.name', choice.name);
    if (!tools.some((tool) => tool.function.name === name))
      throw CapstanError.argument('toolChoice.name', 'the name of one of the tools', name);
    return { name };
  }
  checkOneOf('toolChoice', choice, ['auto', 'none', 'required']);
  if (choice === 'required' && tools.length === 0)
    throw CapstanError.argument('toolChoice', "'auto' or 'none' without tools", choice);
  return choice;
}
