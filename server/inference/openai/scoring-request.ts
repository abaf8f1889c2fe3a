import { ApiError } from '../../base/errors';
import type { JsonText } from '../../base/json/json-text';
import { checkTextSizes, poolingCall, type PoolingCall } from './pooling-call';
import { RERANK_REQUEST, SCORE_REQUEST, type ScoreRequest, type SentText } from './pooling-schema';
import { refuseUnsupported, RERANK_UNSUPPORTED, SCORE_UNSUPPORTED } from './unsupported';
import { validate } from '../../base/json/validate';

/** A request to sort documents by their relevance to a query. */
export interface RerankCall extends PoolingCall {
  query: string;
  documents: string[];
  /** Number of results. */
  topN: number;
  returnsDocuments: boolean;
}

/** A request to score pairs of texts. */
export interface ScoreCall extends PoolingCall {
  /** As many as `right`, or one for all of them. */
  left: string[];
  right: string[];
  /** The fields that hold both, for errors. */
  leftName: string;
  rightName: string;
}

/** Parses a request. Throws an ApiError that names the first invalid field. */
export async function parseRerankRequest({ value }: JsonText): Promise<RerankCall> {
  const request = await validate(RERANK_REQUEST, value);
  refuseUnsupported(value, RERANK_UNSUPPORTED);
  const query = textOf(request.query);
  const documents = request.documents.map(textOf);
  checkTextSizes('documents', [query], documents);
  const { top_n: topN = 0, return_documents: returnsDocuments = true } = request;
  return { ...poolingCall(request), query, documents, topN: topN === 0 ? documents.length : topN, returnsDocuments };
}

/** The names of both sides of the pairs, as vLLM has them. */
const SIDES = [
  ['queries', 'documents'],
  ['queries', 'items'],
  ['data_1', 'data_2'],
  ['text_1', 'text_2'],
] as const satisfies readonly (readonly [keyof ScoreRequest, keyof ScoreRequest])[];
type Side = (typeof SIDES)[number][number];
const SIDE_NAMES: ReadonlySet<Side> = new Set(SIDES.flat());

/** Parses a request. Throws an ApiError that names the first invalid field. */
export async function parseScoreRequest({ value }: JsonText): Promise<ScoreCall> {
  const request = await validate(SCORE_REQUEST, value);
  refuseUnsupported(value, SCORE_UNSUPPORTED);
  const [leftName, rightName] = sidesOf(request);
  const left = textsOf(request[leftName]!);
  const right = textsOf(request[rightName]!);
  if (left.length !== 1 && left.length !== right.length)
    throw new ApiError(
      'invalid_value',
      `${leftName}: expected one text or as many as ${rightName} (${right.length}), got ${left.length}`,
      { param: leftName },
    );
  checkTextSizes(rightName, left, right);
  return { ...poolingCall(request), left, right, leftName, rightName };
}

function sidesOf(request: ScoreRequest): (typeof SIDES)[number] {
  const given = new Set([...SIDE_NAMES].filter((name) => request[name] !== undefined));
  const sides = SIDES.find((names) => names.every((name) => given.has(name)));
  if (sides === undefined) throw missingSide(given);
  const other = [...given].find((name) => !sides.some((side) => side === name));
  if (other !== undefined)
    throw new ApiError('invalid_value', `${other}: not allowed with ${sides.join(' and ')}`, { param: other });
  return sides;
}

function missingSide(given: ReadonlySet<Side>): ApiError {
  const names = SIDES.find((sides) => sides.some((name) => given.has(name))) ?? SIDES[0];
  const param = names.find((name) => !given.has(name))!;
  const message = `${param}: expected ${names.join(' and ')}, or text_1 and text_2, but ${param} is missing`;
  return new ApiError('missing_required_parameter', message, { param });
}

function textsOf(sent: string | SentText[]): string[] {
  return typeof sent === 'string' ? [sent] : sent.map(textOf);
}

function textOf(sent: SentText): string {
  return typeof sent === 'string' ? sent : sent.text;
}
