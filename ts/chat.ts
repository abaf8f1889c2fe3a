import type { ChoiceReading } from './choice-reader';
import { checkBoolean, checkNumber, checkObject, checkOneOf, checkString } from './checks';
import { CapstanError } from './errors';
import { type GrammarPlan, keyOf, withPrefix } from './grammar-cache';
import type { Model } from './model/model';
import type { SamplingParams } from './sampling';
import { planStructuredOutput } from './structured-output';
import { checkMessages, type ChatMessage, checkTools, type Tool, toTemplateMessage } from './text/messages';
import { thinkingStateAfter, thinkingStateWithin, thoughtGrammar, type ThinkingState } from './text/reasoning';
import { type ToolCallFormat, toolCallGrammar, type ToolCallGrammarOptions } from './text/tool-calls';

/** 'auto': the model decides; 'required': at least one call; a name: exactly one call of that function; 'none': no calls, and no tools in the prompt. */
export type ToolChoice = 'auto' | 'none' | 'required' | { name: string };

/** Sampling parameters, and what the chat template needs. */
export interface ChatOptions extends SamplingParams {
  /** Functions that the model may call. Calls keep to the schema of a tool that is `strict`, and of every tool under 'required' or a name. */
  tools?: readonly Tool[];
  /** Default 'auto'. With any but 'none', tools go with no `structuredOutput`. */
  toolChoice?: ToolChoice;
  /** false: generation stops after the first complete call; default true. */
  parallelToolCalls?: boolean;
  /** false leaves thoughts in the text, markers included; default true. */
  separateReasoning?: boolean;
  /** Most tokens of a thought, which is then closed for the model; 0 = none. Without effect where no thought is to come. Default: no limit. */
  thinkingBudget?: number;
  /** Begin an assistant's turn; default true unless the last message is continued. */
  addGenerationPrompt?: boolean;
  /** Go on writing the last message; default false. */
  continueFinalMessage?: boolean;
  /** Run the tokenizer's post-processor (BOS and the like) over the rendered prompt; default false, as templates write these tokens themselves. */
  addSpecialTokens?: boolean;
  /** Further variables of the template in its own spelling, such as `{ enable_thinking: false }`. */
  templateKwargs?: Readonly<Record<string, unknown>>;
}

/** A conversation as the engine takes it. */
export interface PreparedChat {
  prompt: string;
  addSpecialTokens: boolean;
  sampling: SamplingParams;
  reading: ChoiceReading;
  /** What the completion is held to, the thought before it included. */
  plan: GrammarPlan | undefined;
  /** undefined: no limit, or nothing to limit. */
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
  const thinking = !model.hasThoughts
    ? undefined
    : rest.continueFinalMessage === true
      ? thinkingStateWithin(written[written.length - 1].content as string)
      : thinkingStateAfter(prompt);
  const calls =
    tools === undefined ? undefined : planToolCalls(model.toolCallFormat, tools, toolChoice, rest.parallelToolCalls);
  const plan = sampling.structuredOutput === undefined ? calls?.plan : planStructuredOutput(sampling.structuredOutput);
  return {
    prompt,
    addSpecialTokens: rest.addSpecialTokens,
    sampling,
    reading: {
      ...calls?.reading,
      ...(thinking === undefined
        ? {}
        : {
            thinking,
            keepsThoughts: !rest.separateReasoning,
            tokenBytes: (id: number) => model.tokenizer.textBytes(id),
          }),
    },
    plan: plan === undefined ? undefined : afterThought(plan, thinking),
    thinkingBudget:
      rest.thinkingBudget === undefined || thinking === undefined || thinking === 'after'
        ? undefined
        : { budget: rest.thinkingBudget, isInside: thinking === 'inside' },
  };
}

function afterThought(plan: GrammarPlan, thinking: ThinkingState | undefined): GrammarPlan {
  const thought = thinking === undefined ? undefined : thoughtGrammar(thinking);
  return thought === undefined ? plan : withPrefix(plan, `thought ${thinking}`, thought);
}

interface ToolCallPlan {
  reading: ChoiceReading;
  plan?: GrammarPlan;
}

/** Calls that have to come, or tools that are strict, take a grammar; it sees to their number, too. Otherwise calls are found in what the model says. */
function planToolCalls(
  format: ToolCallFormat | undefined,
  tools: readonly Tool[],
  toolChoice: Exclude<ToolChoice, 'none'>,
  parallel: boolean,
): ToolCallPlan {
  if (format === undefined) {
    if (toolChoice === 'auto') return { reading: {} };
    throw CapstanError.argument(
      'toolChoice',
      "'auto' or 'none' for a model whose template shows no tool calls (the engine's option toolCallFormat names their format)",
      nameOf(toolChoice),
    );
  }
  if (toolChoice === 'auto' && !tools.some((tool) => tool.function.strict === true)) {
    return { reading: { toolCallFormat: format, toolCallOptions: { tools }, stopsAfterCall: !parallel } };
  }
  const options: ToolCallGrammarOptions = {
    mode: toolChoice === 'auto' ? 'strict' : 'required',
    parallel,
    ...(typeof toolChoice === 'object' ? { only: toolChoice.name } : {}),
  };
  const written = tools.map(({ function: { name, parameters, strict } }) => [name, parameters, strict]);
  return {
    reading: {
      toolCallFormat: format,
      toolCallOptions: { tools, isConstrained: true },
      isCallNamed: typeof toolChoice === 'object',
    },
    plan: {
      key: keyOf('tools', ['tools', format.name, options, written]),
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
  /** Only where they are to be used: an empty list counts as none. */
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
  const given = tools === undefined ? [] : checkTools(tools);
  const choice = checkToolChoice(toolChoice, given);
  if (addGenerationPrompt !== undefined) checkBoolean('addGenerationPrompt', addGenerationPrompt);
  if (continueFinalMessage !== undefined) checkBoolean('continueFinalMessage', continueFinalMessage);
  if (addGenerationPrompt === true && continueFinalMessage === true)
    throw CapstanError.argument('addGenerationPrompt', 'false beside continueFinalMessage', true);
  if (templateKwargs !== undefined) checkObject('templateKwargs', templateKwargs);
  if (thinkingBudget !== undefined)
    checkNumber('thinkingBudget', thinkingBudget, { min: 0, max: 2 ** 31 - 1, isInteger: true });
  const isUsed = given.length > 0 && choice !== 'none';
  if (isUsed && sampling.structuredOutput !== undefined) throw besideTools(choice);
  return {
    tools: isUsed ? given : undefined,
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

/** A text cannot be both: under 'auto' it may be calls, otherwise it has to be. */
function besideTools(choice: ToolChoice): CapstanError {
  const expected =
    choice === 'auto'
      ? "none beside tools that may be called (toolChoice 'none' leaves them out)"
      : 'none beside a toolChoice that makes the text tool calls';
  return CapstanError.mismatch('invalid_argument', 'structuredOutput', expected, nameOf(choice));
}
