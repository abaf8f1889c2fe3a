import type { FinishEvent, Usage } from '../../../ts';
import { errorStyleOf, namedEvent } from '../../base/error-styles';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { type StreamForm, streamReply } from '../openai/call';
import type { OpenAiContext } from '../openai/context';
import { countPrompt } from '../conversation/count-prompt';
import { generateChat } from '../conversation/generate-chat';
import { readCall } from '../openai/read-call';
import { readyEvents } from '../openai/ready-events';
import { sendJson } from '../../http/send-json';
import { logDroppedTools, withToolPaths } from '../conversation/tools';
import { Content } from './content';

export const MESSAGES_PATH = '/v1/messages';
const PING = namedEvent('ping', { type: 'ping' });

/** POST /v1/messages. Throws errors before the first byte. Later errors are events of the stream. */
export async function createMessage(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { model, requestId, log, reportsUsage = false } = context;
  const call = await readCall('messages', request, context);
  logDroppedTools(log, requestId, call.droppedTypes);
  const head = {
    id: `msg_${requestId}`,
    type: 'message',
    role: 'assistant',
    model: model.responseName(call.model),
  };
  const form: StreamForm = {
    ping: PING,
    terminator: '',
    errorEvents: (error) => errorStyleOf(MESSAGES_PATH).events(error, requestId),
  };
  try {
    await generateChat(context, call, head.id, async (generation, { promptTokens }) => {
      if (!call.isStream) {
        const content = new Content(() => {});
        for await (const events of readyEvents(generation)) events.forEach((event) => content.take(event));
        const { usage } = await generation.result();
        const message = { ...head, content: content.blocks, ...stopOf(content), usage: wireUsage(usage) };
        return sendJson(reply, message, requestId, reportsUsage ? usage : undefined);
      }
      let text = '';
      const emit = (type: string, fields: object) => {
        text += namedEvent(type, { type, ...fields });
      };
      const content = new Content(emit);
      await streamReply(
        context,
        request,
        reply,
        requestId,
        async (sse) => {
          const flush = async () => {
            const events = text;
            text = '';
            if (events !== '') await sse.write(events);
          };
          const usage = wireUsage({ promptTokens, completionTokens: 0, cachedTokens: 0 });
          const stop = { stop_reason: null, stop_sequence: null };
          emit('message_start', { message: { ...head, content: [], ...stop, usage } });
          text += PING;
          await flush();
          for await (const events of readyEvents(generation)) {
            events.forEach((event) => content.take(event));
            await flush();
          }
          const result = await generation.result();
          emit('message_delta', { delta: stopOf(content), usage: wireUsage(result.usage) });
          emit('message_stop', {});
          await flush();
          return reportsUsage ? result.usage : undefined;
        },
        form,
      );
    });
  } catch (error) {
    throw withToolPaths(error, call.toolPaths, 'input_schema');
  }
}

/** POST /v1/messages/count_tokens */
export async function countTokens(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const call = await readCall('countTokens', request, context);
  try {
    sendJson(reply, { input_tokens: await countPrompt(context, call, call.messages) });
  } catch (error) {
    throw withToolPaths(error, call.toolPaths, 'input_schema');
  }
}

export function stopOf({ blocks, finish }: Content): { stop_reason: string; stop_sequence: string | null } {
  const { finishReason, stopReason } = finish as FinishEvent;
  if (finishReason === 'length') return { stop_reason: 'max_tokens', stop_sequence: null };
  if (blocks.some(({ type }) => type === 'tool_use')) return { stop_reason: 'tool_use', stop_sequence: null };
  return typeof stopReason === 'string'
    ? { stop_reason: 'stop_sequence', stop_sequence: stopReason }
    : { stop_reason: 'end_turn', stop_sequence: null };
}

/** Input tokens leave out those that the prefix cache had. */
export function wireUsage({
  promptTokens,
  completionTokens,
  cachedTokens,
}: Pick<Usage, 'promptTokens' | 'completionTokens' | 'cachedTokens'>): object {
  return {
    input_tokens: promptTokens - cachedTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cachedTokens,
    output_tokens: completionTokens,
  };
}
