import type { ChatEvent, Generation, Usage } from '../../../ts';
import type { ApiError } from '../../base/errors';
import { namedEvent, responseErrorEvent } from '../../base/error-styles';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { type StreamForm, streamReply } from '../openai/call';
import type { OpenAiContext } from '../openai/context';
import { TokenWords } from '../openai/logprobs';
import { generateChat } from '../conversation/generate-chat';
import { readCall } from '../openai/read-call';
import { readyEvents } from '../openai/ready-events';
import { sendJson } from '../../http/send-json';
import { logDroppedTools, withToolPaths } from '../conversation/tools';
import { History } from '../../storage/responses/history';
import { conversationOf, type StoredTurn } from './conversation';
import { newResponseId } from '../../storage/responses/ids';
import { Output } from './output';
import { type ResponseHead, statusOf, wireResponse } from './response';

/** POST /v1/responses. Throws errors before the first byte. Later errors are events of the stream. */
export async function createResponse(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { engine, model, identity, requestId, log, responses } = context;
  const call = await readCall('responses', request, context);
  logDroppedTools(log, requestId, call.droppedTypes);
  const history = new History(responses, identity);
  const head: ResponseHead = {
    id: newResponseId(),
    created: Math.floor(Date.now() / 1000),
    model: model.responseName(call.model),
    isStored: call.isStored && responses !== undefined,
    call,
    defaults: engine.info.samplingDefaults,
  };
  const { messages, own } = await conversationOf(history, call);
  try {
    await generateChat(context, { ...call, messages }, head.id, async (generation) => {
      const events: string[] = [];
      const stream = new ResponseStream(head, new TokenWords(engine), (text) => events.push(text));
      /** Returns the response as it is sent. One that cannot be stored is sent, too. */
      const save = async (response: WireResponse): Promise<WireResponse> => {
        if (!head.isStored) return response;
        const messages = [...own(), stream.output.message];
        const turn: StoredTurn = { response, input: call.items, messages };
        try {
          if (await history.put(turn)) return response;
          log.warn({ requestId }, 'a response is too large to be stored');
        } catch (error) {
          log.error({ requestId, err: error }, 'cannot store a response');
        }
        return { ...response, store: false };
      };
      if (!call.isStream) {
        for await (const group of readyEvents(generation)) group.forEach((event) => stream.output.take(event));
        const { response, usage } = await stream.response(generation);
        return sendJson(reply, await save(response), requestId, context.reportsUsage === true ? usage : undefined);
      }
      await streamReply(
        context,
        request,
        reply,
        requestId,
        async (sse) => {
          const flush = () => sse.write(events.splice(0).join(''));
          stream.begin();
          await flush();
          for await (const group of readyEvents(generation)) {
            group.forEach((event) => stream.output.take(event));
            if (events.length > 0) await flush();
          }
          const { response, usage } = await stream.response(generation);
          stream.end(await save(response));
          await flush();
          return context.reportsUsage === true ? usage : undefined;
        },
        stream.form,
      );
    });
  } catch (error) {
    throw withToolPaths(error, call.toolPaths, 'parameters');
  }
}

/** Writes the events of one response. */
class ResponseStream {
  readonly output: Output;
  readonly #head: ResponseHead;
  readonly #write: (text: string) => void;
  #numEvents = 0;

  constructor(head: ResponseHead, words: TokenWords, write: (text: string) => void) {
    this.#head = head;
    this.#write = write;
    this.output = new Output({
      responseId: head.id,
      callForms: head.call.callForms,
      words,
      emit: (type, fields) => this.#emit(type, fields),
    });
  }

  begin(): void {
    const response = wireResponse(this.#head, { status: 'in_progress', output: [] });
    this.#emit('response.created', { response });
    this.#emit('response.in_progress', { response });
  }

  /** Returns the response of a generation whose events were all taken. */
  async response(generation: Generation<ChatEvent>): Promise<{ response: WireResponse; usage: Usage }> {
    const { choices, usage } = await generation.result();
    const status = statusOf(choices[0].finishReason);
    return { response: wireResponse(this.#head, { status, output: this.output.items, usage }), usage };
  }

  end(response: WireResponse): void {
    this.#emit(`response.${response.status}`, { response });
  }

  readonly form: StreamForm = {
    terminator: '',
    errorEvents: (error: ApiError) => {
      const response = wireResponse(this.#head, { status: 'failed', output: this.output.items, error });
      return this.#event('response.failed', { response }) + this.#event('error', responseErrorEvent(error));
    },
  };

  #emit(type: string, fields: object): void {
    // Only a stream has events.
    if (this.#head.call.isStream) this.#write(this.#event(type, fields));
  }

  #event(type: string, fields: object): string {
    return namedEvent(type, { type, ...fields, sequence_number: this.#numEvents++ });
  }
}

type WireResponse = ReturnType<typeof wireResponse>;
