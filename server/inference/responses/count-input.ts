import { sendJson } from '../../http/send-json';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { History } from '../../storage/responses/history';
import { countPrompt } from '../conversation/count-prompt';
import { withToolPaths } from '../conversation/tools';
import type { OpenAiContext } from '../openai/context';
import { readCall } from '../openai/read-call';
import { conversationOf } from './conversation';

/** POST /v1/responses/input_tokens */
export async function countInput(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const call = await readCall('responses', request, context);
  const { messages } = await conversationOf(new History(context.responses, context.identity), call);
  try {
    sendJson(reply, { object: 'response.input_tokens', input_tokens: await countPrompt(context, call, messages) });
  } catch (error) {
    throw withToolPaths(error, call.toolPaths, 'parameters');
  }
}
