import { choice, type GrammarExpr, literal, optional, sequence, until, without } from '../grammar';
import { type ChatMessage, joinContent } from '../messages';
import { CALL, END, FUNCTIONS, harmony, RETURN } from '../reasoning/harmony';
import { CHANNEL, CONSTRAIN, HarmonyHeader, MESSAGE, NEXT_MESSAGE } from '../reasoning/harmony-header';
import type { ToolCallFormat } from './format';
import type { CallInput, Reading } from './input';
import { readJsonArguments } from './json-call';

const WORD = /^[^\s<]$/u;

/**
 * Harmony (gpt-oss): a call is a message to `functions.NAME`, usually on the channel `commentary`. The recipient stands
 * before or after the channel.
 */
export const harmonyCalls: ToolCallFormat = {
  name: 'harmony',
  aliases: ['openai', 'gpt_oss'],
  matchesTemplate: harmony.matchesTemplate,
  markers: harmony.markers,
  turnEnds: [CALL, RETURN],
  partEnds: [END],
  callEnd: CALL,
  begins: (char, place) => char === '<' || (place === 'start' && (char === ' ' || char === 't')),
  *read(input, sink) {
    const recipient = yield* readHeader(input);
    if (recipient === undefined || !recipient.startsWith(FUNCTIONS)) return false;
    const name = recipient.slice(FUNCTIONS.length);
    if (!sink.knows(name)) return false;
    sink.begin(name);
    if (!(yield* readJsonArguments(input, sink))) return false;
    yield* input.blanks();
    return yield* input.oneOfOrEnd(CALL, END, RETURN);
  },
  syntax: {
    before: '',
    between: `${CALL}${NEXT_MESSAGE}`,
    after: '',
    call: ({ name, json, rejectName }) => {
      if (![...name].every((char) => WORD.test(char))) rejectName('a name without < and blanks');
      const recipient = `to=${FUNCTIONS}${name}`;
      const header = choice(`${CHANNEL}commentary ${recipient} `, ` ${recipient}${CHANNEL}commentary `);
      return sequence(header, optional(literal(CONSTRAIN)), `json${MESSAGE}`, json());
    },
    open: CHANNEL,
    allowsTextAfterCalls: false,
    isSingle: true,
    withText,
  },
  toPromptMessages: (messages) => oneCallPerMessage(instructionsFirst(messages)).map(withoutContentBesideReasoning),
};

/** Returns the recipient; undefined if there is none or the text is no header. */
function* readHeader(input: CallInput): Reading<string | undefined> {
  const header = new HarmonyHeader();
  while (!header.isComplete) {
    const char = yield* input.peek();
    if (char === undefined || !header.push(char)) return undefined;
    input.skip();
  }
  return header.recipient;
}

/** Returns the grammar of a final message, or of a call, which may follow a message to the user. */
function withText(calls: GrammarExpr): GrammarExpr {
  const preamble = sequence(`${CHANNEL}commentary${MESSAGE}`, until(END), literal(NEXT_MESSAGE));
  return choice(sequence(`${CHANNEL}final${MESSAGE}`, without(END)), sequence(optional(preamble), calls));
}

/** Joins all instructions in the first message. The templates leave out the others. */
function instructionsFirst(messages: readonly ChatMessage[]): readonly ChatMessage[] {
  const isInstruction = ({ role }: ChatMessage): boolean => role === 'system' || role === 'developer';
  const instructions = messages.filter(isInstruction);
  if (instructions.length === 0 || (instructions.length === 1 && instructions[0] === messages[0])) return messages;
  const content = instructions.map((message) => joinContent(message.content)).join('\n\n');
  return [{ role: 'developer', content }, ...messages.filter((message) => !isInstruction(message))];
}

/** Splits messages with several calls. Each call is followed by its result. The templates write only the first call. */
function oneCallPerMessage(messages: readonly ChatMessage[]): ChatMessage[] {
  const split: ChatMessage[] = [];
  for (let i = 0; i < messages.length; i++) {
    const { toolCalls = [], ...message } = messages[i];
    if (toolCalls.length < 2) {
      split.push(messages[i]);
      continue;
    }
    const end = messages.findIndex(({ role }, at) => at > i && role !== 'tool');
    const results = messages.slice(i + 1, end < 0 ? messages.length : end);
    const left = new Set(results);
    for (const [k, call] of toolCalls.entries()) {
      split.push(k === 0 ? { ...message, toolCalls: [call] } : { role: 'assistant', toolCalls: [call] });
      for (const [at, result] of results.entries())
        if (result.toolCallId === undefined ? at === k : result.toolCallId === call.id) {
          split.push(result);
          left.delete(result);
        }
    }
    split.push(...left);
    i += results.length;
  }
  return split;
}

/** The templates refuse a message with calls that has both content and reasoning. They write either as analysis. */
function withoutContentBesideReasoning(message: ChatMessage): ChatMessage {
  const { toolCalls = [], content, reasoning } = message;
  if (toolCalls.length === 0 || !reasoning || !content || content.length === 0) return message;
  return { ...message, reasoning: `${reasoning}\n${joinContent(content)}`, content: '' };
}
