import { CapstanError, type PoolingOptions, type ScoreResult } from '../../../ts';
import type { HttpReply, HttpRequest } from '../../http/transport';
import { cacheSaltOf, resolveRequestId } from './call';
import type { OpenAiContext } from './context';
import { type PoolingCall, toPoolingError, withTokenCount } from './pooling-call';
import { readCall } from './read-call';
import type { ScoreCall } from './scoring-request';
import { sendJson } from '../../http/send-json';
import { poolingUsage, type PromptUsage, wireUsage } from './usage';

/** POST /rerank, /v1/rerank and /v2/rerank: sorts documents by their relevance to a query. */
export async function rerank(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { engine, model } = context;
  const call = await readCall('rerank', request, context);
  const { query, documents, topN, returnsDocuments } = call;
  const requestId = resolveRequestId(context, request, call.requestId);
  const head = { id: `rerank-${requestId}`, model: model.responseName(call.model) };
  try {
    const { scores, usage } = await run(context, call, head.id, (options) => engine.rerank(query, documents, options));
    const results = scores.map((score, index) => ({
      index,
      ...(returnsDocuments ? { document: { text: documents[index] } } : {}),
      relevance_score: score,
    }));
    results.sort((a, b) => b.relevance_score - a.relevance_score || a.index - b.index);
    const { promptTokens, totalTokens } = usage;
    const body = {
      ...head,
      usage: { prompt_tokens: promptTokens, total_tokens: totalTokens },
      results: results.slice(0, topN),
      // Clients of Cohere's interface read the usage here, or refuse a response without it.
      meta: { tokens: { input_tokens: promptTokens } },
    };
    sendJson(reply, body, requestId, context.reportsUsage === true ? usage : undefined);
  } catch (error) {
    throw toPoolingError(error, {});
  }
}

/** POST /score and /v1/score: scores pairs of texts. */
export async function score(context: OpenAiContext, request: HttpRequest, reply: HttpReply): Promise<void> {
  const { engine, model } = context;
  const call = await readCall('score', request, context);
  const { left, right } = call;
  const requestId = resolveRequestId(context, request, call.requestId);
  const head = {
    id: `score-${requestId}`,
    object: 'list',
    created: Math.floor(Date.now() / 1000),
    model: model.responseName(call.model),
  };
  try {
    const pairs = right.map((text, i) => [left.length === 1 ? left[0] : left[i], text] as const);
    const { scores, usage } = await run(context, call, head.id, (options) => engine.score(pairs, options));
    const body = {
      ...head,
      data: scores.map((value, index) => ({ index, object: 'score', score: value })),
      usage: wireUsage(usage, engine.info.prefixCache),
    };
    sendJson(reply, body, requestId, context.reportsUsage === true ? usage : undefined);
  } catch (error) {
    throw toPoolingError(inClientNames(error, call), {});
  }
}

async function run(
  context: OpenAiContext,
  { options, cacheSalt }: PoolingCall,
  requestId: string,
  start: (options: PoolingOptions) => Promise<ScoreResult>,
): Promise<{ scores: number[]; usage: PromptUsage }> {
  const { engine, identity, signal } = context;
  engine.checkCapacity();
  const { scores, usage } = await withTokenCount(context, (onTokens) =>
    start({ ...options, signal, requestId, cacheSalt: cacheSaltOf(identity, cacheSalt), onTokens }),
  );
  return { scores, usage: poolingUsage(usage) };
}

/** Names the texts of a pair, or both, as the request has them. */
function inClientNames(error: unknown, { left, leftName, rightName }: ScoreCall): unknown {
  if (!(error instanceof CapstanError) || error.param === undefined) return error;
  const [, index, side] = /^pairs\[(\d+)\](?:\[([01])\])?$/.exec(error.param) ?? [];
  if (index === undefined) return error;
  const leftText = left.length === 1 ? leftName : `${leftName}[${index}]`;
  const rightText = `${rightName}[${index}]`;
  const where = side === undefined ? `${leftText} and ${rightText} together` : [leftText, rightText][Number(side)];
  const message = error.message.startsWith(error.param)
    ? where + error.message.slice(error.param.length)
    : error.message;
  return new CapstanError(error.code, message, { ...error, param: side === '0' ? leftName : rightName });
}
