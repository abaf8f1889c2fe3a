import type { ChoiceReading } from './choice-reader';
import { checkBoolean, checkObject, checkOneOf } from './checks';
import { CapstanError } from './errors';
import type { Model } from './model/model';
import type { SamplingParams } from './sampling';
import { checkMessages, type ChatMessage, checkTools, type Tool, toTemplateMessage } from './text/messages';
import { thinkingStateAfter, thinkingStateWithin } from './text/reasoning';

/** Sampling parameters, and what the chat template needs. */
export interface ChatOptions extends SamplingParams {
  /** Functions that the model may call. */
  tools?: readonly Tool[];
  /** 'none' leaves the tools out and calls unread; default 'auto'. */
  toolChoice?: 'auto' | 'none';
  /** Begin an assistant's turn; default true unless the last message is continued. */
  addGenerationPrompt?: boolean;
  /** Go on writing the last message; default false. */
  continueFinalMessage?: boolean;
  /** Further variables of the template in its own spelling, such as `{ enable_thinking: false }`. */
  templateKwargs?: Readonly<Record<string, unknown>>;
}

type TemplateOptions = Omit<ChatOptions, keyof SamplingParams>;

/** A conversation as the engine takes it. */
export interface PreparedChat {
  prompt: string;
  reading: ChoiceReading;
}

/** @throws CapstanError `invalid_argument`, or `template_error` from the template. */
export async function prepareChat(model: Model, messages: readonly ChatMessage[], options: ChatOptions): Promise<PreparedChat> {
  const checked = checkMessages(messages);
  const { template } = splitChatOptions(options);
  const { tools, addGenerationPrompt, continueFinalMessage, templateKwargs } = template;
  if (addGenerationPrompt === true && continueFinalMessage === true) throw CapstanError.argument('addGenerationPrompt', 'false beside continueFinalMessage', true);
  const knowsDeveloper = model.chatTemplate.mentions('developer');
  const prompt = await model.chatTemplate.render(checked.map((message) => toTemplateMessage(message, knowsDeveloper)), {
    ...(tools === undefined ? {} : { tools }),
    ...(addGenerationPrompt === undefined ? {} : { addGenerationPrompt }),
    ...(continueFinalMessage === undefined ? {} : { continueFinalMessage }),
    ...(templateKwargs === undefined ? {} : { templateKwargs }),
  });
  const last = toTemplateMessage(checked[checked.length - 1], knowsDeveloper).content as string;
  return {
    prompt,
    reading: {
      ...(tools === undefined || model.toolCallFormat === undefined ? {} : { toolCallFormat: model.toolCallFormat }),
      ...(model.hasThoughts ? { thinking: continueFinalMessage === true ? thinkingStateWithin(last) : thinkingStateAfter(prompt) } : {}),
    },
  };
}

/** Tools only where they are to be used: an empty list counts as none. */
export function splitChatOptions(options: ChatOptions): { template: TemplateOptions; sampling: SamplingParams } {
  checkObject('options', options);
  const { tools, toolChoice = 'auto', addGenerationPrompt, continueFinalMessage, templateKwargs, ...sampling } = options;
  checkOneOf('toolChoice', toolChoice, ['auto', 'none']);
  if (addGenerationPrompt !== undefined) checkBoolean('addGenerationPrompt', addGenerationPrompt);
  if (continueFinalMessage !== undefined) checkBoolean('continueFinalMessage', continueFinalMessage);
  if (templateKwargs !== undefined) checkObject('templateKwargs', templateKwargs);
  const isUsed = tools !== undefined && checkTools(tools).length > 0 && toolChoice !== 'none';
  return { template: { ...(isUsed ? { tools } : {}), addGenerationPrompt, continueFinalMessage, templateKwargs }, sampling };
}
