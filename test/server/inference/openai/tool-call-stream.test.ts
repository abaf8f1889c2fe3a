/** For every format: however the engine cuts the text, the joined chunks equal the complete response. */
import type { ChatEvent, FinishEvent, GenerationResult } from '../../../../ts';
import type { NativeEvent } from '../../../../ts/addon-types';
import { ChoiceReader, type ChoiceReaderOptions } from '../../../../ts/choice-reader';
import { TOOL_CALL_FORMATS } from '../../../../ts/text/tool-calls';
import type { ChatCall } from '../../../../server/inference/openai/chat-request';
import { chatCompletion, type ChatStyle, type CompletionHead } from '../../../../server/inference/openai/chat-response';
import { ChatChunks } from '../../../../server/inference/openai/chat-stream';
import { cut, GOOD, makeRandom, split, TOOLS } from '../../../ts/text/tool-call-cases';

const HEAD: CompletionHead = { id: 'x', created: 0, model: 'm' };
const STYLE = { role: 'assistant', hasPrefixCache: false } as ChatStyle;
const NO_NAMES: readonly string[] = [];
const CALL = { options: {}, usage: {}, showsReasoning: true, customNames: NO_NAMES } as ChatCall;

interface Message {
  content: string;
  reasoning: string;
  calls: { id: string; name: string; arguments: string }[];
  finishReason: string;
}

type Reason = 'stop' | 'length';

/** Returns the events of a completion that the engine delivers in these pieces, and the reader. */
function events(pieces: readonly string[], reason: Reason, options: ChoiceReaderOptions): [ChatEvent[], ChoiceReader] {
  const reader = new ChoiceReader(0, options);
  const finish = { reason } as NativeEvent['finish'];
  const parts = [...pieces.map((text) => ({ text, finish: null })), { text: '', finish }];
  const found: ChatEvent[] = parts.flatMap((part) =>
    reader.read({ textDelta: part.text, tokenIds: [], logprobs: null, finish: part.finish } as unknown as NativeEvent),
  );
  const end = { type: 'finish', index: 0, finishReason: reader.finishReason(reason), stopReason: null } as FinishEvent;
  return [[...found, end], reader];
}

function streamed(pieces: readonly string[], reason: Reason, options: ChoiceReaderOptions): Message {
  const chunks = new ChatChunks(HEAD, CALL, 0, STYLE);
  const message: Message = { content: '', reasoning: '', calls: [], finishReason: '' };
  const [all] = events(pieces, reason, options);
  for (const chunk of all.flatMap((event) => chunks.take([event]))) {
    const [{ delta, finish_reason: finishReason }] = (JSON.parse(chunk) as { choices: any[] }).choices;
    message.content += delta.content ?? '';
    message.reasoning += delta.reasoning_content ?? '';
    message.finishReason = finishReason ?? message.finishReason;
    for (const { index, id, type, function: part } of delta.tool_calls ?? []) {
      if (id === undefined) {
        expect([index, type, Object.keys(part)]).toEqual([message.calls.length - 1, undefined, ['arguments']]);
        message.calls[index].arguments += part.arguments;
      } else {
        expect([index, type, part.arguments]).toEqual([message.calls.length, 'function', '']);
        message.calls.push({ id: 'id', name: part.name, arguments: '' });
      }
    }
  }
  return message;
}

function complete(text: string, reason: Reason, options: ChoiceReaderOptions): Message {
  const [, reader] = events([text], reason, options);
  const { toolCalls, reasoning } = reader;
  const result = {
    choices: [{ index: 0, text: reader.text, reasoning, toolCalls, finishReason: reader.finishReason(reason) }],
    usage: {},
  } as unknown as GenerationResult;
  const response = chatCompletion(HEAD, CALL, result, { tokenIds: undefined, text: undefined }, STYLE);
  const [{ message, finish_reason: finishReason }] = (response as { choices: any[] }).choices;
  return {
    content: message.content,
    reasoning: message.reasoning_content,
    calls: message.tool_calls.map((call: any) => ({ ...call.function, id: 'id' })),
    finishReason,
  };
}

test.each(TOOL_CALL_FORMATS.map((format) => [format.name, format] as const))('%s', (name, format) => {
  const random = makeRandom(name.length * 31);
  const texts = (GOOD[name] ?? GOOD.mistral).map(([, text]) => text);
  for (let round = 0; round < 400; round++) {
    const thinks = random(3) === 0;
    const text = `${thinks ? '<think>\nHm.\n</think>\n\n' : ''}${cut(texts[random(texts.length)], random)}`;
    const reason = random(2) === 0 ? 'stop' : 'length';
    const options: ChoiceReaderOptions = {
      toolCallFormat: format,
      toolCallOptions: { tools: TOOLS },
      stopsAfterCall: random(4) === 0,
      ...(thinks ? { thinking: 'before' as const } : {}),
    };
    const whole = complete(text, reason, options);
    expect([text, streamed(split(text, random), reason, options)]).toEqual([text, whole]);
    if (options.stopsAfterCall === true) expect(whole.calls.length).toBeLessThanOrEqual(1);
  }
});

test('calls of custom tools that arrive in turns, with one id, stay apart', () => {
  const call = { ...CALL, customNames: ['note'] };
  const chunks = new ChatChunks(HEAD, call, 0, STYLE);
  const part = (callIndex: number, argumentsDelta: string): ChatEvent => ({
    type: 'toolCall',
    index: 0,
    callIndex,
    id: 'call_1',
    name: 'note',
    argumentsDelta,
  });
  const end = { type: 'finish', index: 0, finishReason: 'tool_calls', stopReason: null } as FinishEvent;
  const events = [part(0, '{"input":'), part(1, '{"input":"b"}'), part(0, '"a"}'), end];
  const calls = chunks.take(events).flatMap((chunk) => {
    const [{ delta }] = (JSON.parse(chunk) as { choices: any[] }).choices;
    return delta.tool_calls ?? [];
  });
  expect(calls).toEqual(
    ['a', 'b'].map((input, index) => ({ index, id: 'call_1', type: 'custom', custom: { name: 'note', input } })),
  );
});
