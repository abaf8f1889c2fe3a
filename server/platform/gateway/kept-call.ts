import {
  ApiError,
  CHAT_PATH,
  header,
  INPUT_TOKENS_PATH,
  mediaType,
  RecordedReply,
  RESPONSES_PATH,
  type StreamedRequest,
} from 'capstan/internal';
import { modelOf } from './forward/fallbacks';
import type { RequestedModel } from './model-api';
import { mustStream } from './model-body';
import type { KeptRequest, OwnerStorage } from './owner-storage';

/** The routes whose responses may be kept. */
const KINDS: Readonly<Record<string, KeptRequest['kind'] | undefined>> = {
  [CHAT_PATH]: 'completion',
  [RESPONSES_PATH]: 'response',
  [INPUT_TOKENS_PATH]: 'count',
};

/** The parts of a call that change if its response is kept. */
export interface KeptCall {
  request: StreamedRequest;
  model: RequestedModel | undefined;
  reply: RecordedReply;
  settled(): Promise<void>;
}

/**
 * Prepares a call whose response is kept, or one that counts the tokens of a kept conversation. Returns undefined for
 * any other call. Bodies that are forwarded while they arrive are not read, so their responses are not kept.
 */
export async function keepCall(
  storage: OwnerStorage,
  owner: Omit<KeptRequest, 'kind'>,
  { request, path, model, reply }: Omit<KeptCall, 'settled'> & { path: string },
): Promise<KeptCall | undefined> {
  const kind = KINDS[path];
  if (request.method !== 'POST' || kind === undefined || mustStream(request)) return undefined;
  if ((mediaType(request) ?? 'application/json') !== 'application/json') return undefined;
  if (header(request, 'content-encoding') !== undefined) return undefined;
  const whole = model === undefined ? await request.readBody() : model.body.whole;
  if (whole === undefined) return undefined;
  const kept = await storage.keepResponse({ ...owner, kind }, whole, reply);
  if (kept === undefined) return { request: withBody(request, whole), model, reply, settled: () => Promise.resolve() };
  return {
    request: withBody(request, kept.body),
    model: model === undefined ? undefined : await withWhole(model, kept.body),
    reply: new RecordedReply(kept.reply, {}),
    settled: () => kept.settled(),
  };
}

function withBody(request: StreamedRequest, body: Buffer): StreamedRequest {
  return {
    ...request,
    headers: request.headers.map(([name, value]) => [name, name === 'content-length' ? String(body.length) : value]),
    readBody: () => Promise.resolve(body),
    bodyPieces: async function* () {
      yield await Promise.resolve(body);
    },
  };
}

async function withWhole(model: RequestedModel, whole: Buffer): Promise<RequestedModel> {
  const changed = await modelOf(whole);
  if (changed === undefined) throw new ApiError('internal_error', 'A request for a response has lost its field model');
  return { ...model, body: changed.body };
}
