import type { ChoiceReaderOptions } from './choice-reader';
import { checkBoolean, checkNumber, checkObject, checkOneOf, checkString } from './checks';
import { CapstanError } from './errors';
import { type GrammarPlan, jsonKey, withPrefix } from './grammar-cache';
import type { Model } from './model/model';
import type { SamplingParams } from './sampling';
import { planStructuredOutput } from './structured-output';
import { checkMessages, type ChatMessage, checkTools, type Tool, toTemplateMessage } from './text/messages';
import { thinkingStateAfter, thinkingStateWithin, reasoningGrammar, type ThinkingState } from './text/reasoning';
import { type ToolCallFormat, toolCallGrammar, type ToolCallGrammarOptions } from './text/tool-calls';

/**
 * Whether the model calls tools:
 *
 * - `'auto'`: the model decides.
 * - `'none'`: no calls. The tools are left out of the prompt.
 * - `'required'`: at least one call.
 * - `{ name }`: exactly one call of this function.
 */
export type ToolChoice = 'auto' | 'none' | 'required' | { name: string };

/** Options of {@link Engine.chat}: sampling parameters, tools, and variables of the chat template. */
export interface ChatOptions extends SamplingParams {
  /**
   * Functions that the model may call. Arguments are constrained to the schema of a tool that is `strict`, and of
   * every tool if `toolChoice` is `'required'` or a name.
   */
  tools?: readonly Tool[];
  /** Default: `'auto'`. Unless it is `'none'`, tools cannot be combined with `structuredOutput`. */
  toolChoice?: ToolChoice;
  /** If false, the choice ends after its first complete tool call. Default: true. */
  parallelToolCalls?: boolean;
  /** If false, reasoning stays in the text with its markers. Default: true. */
  separateReasoning?: boolean;
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

/** A conversation, rendered and planned for the engine. */
export interface PreparedChat {
  prompt: string;
  addSpecialTokens: boolean;
  sampling: SamplingParams;
  readerOptions: ChoiceReaderOptions;
  /** The grammar of the completion, reasoning included. */
  plan: GrammarPlan | undefined;
  /** undefined: no limit, or no reasoning to limit. */
  thinkingBudget: { budget: number; isInside: boolean } | undefined;
}

/** @throws CapstanError `invalid_argument`, or `template_error` from the template. */
export async function prepareChat(
  model: Model,
  messages: readonly ChatMessage[],
  options: ChatOptions,
): Promise<PreparedChat> {
  const checked = checkMessages(messages);
  const { tools, toolChoice, sampling, ...rest } = checkChatOptions(options);
  const { traits } = model.chatTemplate;
  const written = checked.map((message) => toTemplateMessage(message, traits, model.toolCallFormat?.toPromptId));
  const prompt = await model.chatTemplate.render(written, {
    ...(tools === undefined ? {} : { tools }),
    ...(rest.addGenerationPrompt === undefined ? {} : { addGenerationPrompt: rest.addGenerationPrompt }),
    ...(rest.continueFinalMessage === undefined ? {} : { continueFinalMessage: rest.continueFinalMessage }),
    ...(rest.templateKwargs === undefined ? {} : { templateKwargs: rest.templateKwargs }),
  });
  const finalContent = rest.continueFinalMessage === true ? written[written.length - 1].content : undefined;
  const thinking = model.hasReasoning ? findThinkingState(prompt, finalContent as string | undefined) : undefined;
  const calls =
    tools === undefined ? undefined : planToolCalls(model.toolCallFormat, tools, toolChoice, rest.parallelToolCalls);
  const plan = sampling.structuredOutput === undefined ? calls?.plan : planStructuredOutput(sampling.structuredOutput);
  return {
    prompt,
    addSpecialTokens: rest.addSpecialTokens,
    sampling,
    readerOptions: {
      ...calls?.readerOptions,
      ...(thinking === undefined
        ? {}
        : {
            thinking,
            keepsReasoningInText: !rest.separateReasoning,
            tokenBytes: (id: number) => model.tokenizer.textBytes(id),
          }),
    },
    plan: plan === undefined ? undefined : afterReasoning(plan, thinking),
    thinkingBudget:
      rest.thinkingBudget === undefined || thinking === undefined || thinking === 'after'
        ? undefined
        : { budget: rest.thinkingBudget, isInside: thinking === 'inside' },
  };
}

/** @param finalContent The message that the completion continues, if it does. */
function findThinkingState(prompt: string, finalContent: string | undefined): ThinkingState {
  return finalContent === undefined ? thinkingStateAfter(prompt) : thinkingStateWithin(finalContent);
}

function afterReasoning(plan: GrammarPlan, thinking: ThinkingState | undefined): GrammarPlan {
  const reasoning = thinking === undefined ? undefined : reasoningGrammar(thinking);
  return reasoning === undefined ? plan : withPrefix(plan, `reasoning ${thinking}`, reasoning);
}

interface ToolCallPlan {
  readerOptions: ChoiceReaderOptions;
  plan?: GrammarPlan;
}

/**
 * Required calls and strict tools need a grammar, which also limits the number of calls. Otherwise calls are parsed
 * from free text.
 */
function planToolCalls(
  format: ToolCallFormat | undefined,
  tools: readonly Tool[],
  toolChoice: Exclude<ToolChoice, 'none'>,
  parallel: boolean,
): ToolCallPlan {
  if (format === undefined) {
    if (toolChoice === 'auto') return { readerOptions: {} };
    throw CapstanError.argument(
      'toolChoice',
      "'auto' or 'none', because the chat template shows no tool call format (set the engine option toolCallFormat)",
      nameOf(toolChoice),
    );
  }
  if (toolChoice === 'auto' && !tools.some((tool) => tool.function.strict === true)) {
    return { readerOptions: { toolCallFormat: format, toolCallOptions: { tools }, stopsAfterCall: !parallel } };
  }
  const options: ToolCallGrammarOptions = {
    mode: toolChoice === 'auto' ? 'strict' : 'required',
    parallel,
    ...(typeof toolChoice === 'object' ? { only: toolChoice.name } : {}),
  };
  const definitions = tools.map(({ function: { name, parameters, strict } }) => [name, parameters, strict]);
  return {
    readerOptions: {
      toolCallFormat: format,
      toolCallOptions: { tools, isConstrained: true },
      isCallNamed: typeof toolChoice === 'object',
    },
    plan: {
      key: jsonKey('tools', ['tools', format.name, options, definitions]),
      source: () => ({ kind: 'rules', ...toolCallGrammar(format, tools, options) }),
      param: 'tools',
    },
  };
}

function nameOf(choice: ToolChoice): string {
  return typeof choice === 'object' ? choice.name : choice;
}

type CheckedOptions = Pick<
  ChatOptions,
  'addGenerationPrompt' | 'continueFinalMessage' | 'templateKwargs' | 'thinkingBudget'
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
  checkObject('options', options);
  const {
    tools,
    toolChoice = 'auto',
    parallelToolCalls = true,
    separateReasoning = true,
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
  if (thinkingBudget !== undefined)
    checkNumber('thinkingBudget', thinkingBudget, { min: 0, max: 2 ** 31 - 1, isInteger: true });
  const areUsed = checkedTools.length > 0 && choice !== 'none';
  if (areUsed && sampling.structuredOutput !== undefined) throw structuredOutputConflict(choice);
  return {
    tools: areUsed ? checkedTools : undefined,
    toolChoice: choice === 'none' ? 'auto' : choice,
    parallelToolCalls: checkBoolean('parallelToolCalls', parallelToolCalls),
    separateReasoning: checkBoolean('separateReasoning', separateReasoning),
    addSpecialTokens: checkBoolean('addSpecialTokens', addSpecialTokens),
    addGenerationPrompt,
    continueFinalMessage,
    templateKwargs,
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

function structuredOutputConflict(choice: ToolChoice): CapstanError {
  const expected =
    choice === 'auto'
      ? "no structured output with tools that may be called (toolChoice 'none' disables them)"
      : 'no structured output with a toolChoice that forces tool calls';
  return CapstanError.mismatch('invalid_argument', 'structuredOutput', expected, nameOf(choice));
}
