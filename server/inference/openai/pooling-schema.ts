/** The request bodies of embeddings and scores, as schema.ts has those of completions. */
import { CALL_PROPERTIES, CONVERSATION_PROPERTIES, nonEmptyText, prompts } from './schema';
import { array, boolean, integer, object, oneOf, type Static, string, stringOr } from '../../base/json/schema-types';

/** Inputs of one request, as at OpenAI. */
export const MAX_INPUTS = 2_048;
/** Documents or pairs of one request. */
export const MAX_DOCUMENTS = 2_048;

const document = stringOr(object({ text: nonEmptyText }, ['text']), {
  minLength: 1,
  description: 'a string of at least one character, or an object with such a string as text',
});
const documents = array(document, {
  minItems: 1,
  maxItems: MAX_DOCUMENTS,
  description: `an array of 1 to ${MAX_DOCUMENTS} strings or objects with text`,
});
const oneOrMoreTexts = stringOr(documents, {
  minLength: 1,
  description: `a string of at least one character, or an array of 1 to ${MAX_DOCUMENTS} of them`,
});

const POOLING_PROPERTIES = {
  model: string,
  user: string,
  truncate_prompt_tokens: integer({ minimum: -1 }),
  truncation_side: oneOf('left', 'right'),
  use_activation: boolean,
  ...CALL_PROPERTIES,
};

/** `parseEmbeddingRequest` checks that a request has inputs or a conversation. */
export const EMBEDDING_REQUEST = object({
  input: prompts,
  ...CONVERSATION_PROPERTIES,
  ...POOLING_PROPERTIES,
  encoding_format: oneOf('float', 'base64'),
  dimensions: integer({ minimum: 1 }),
  normalize: boolean,
  prompt_name: nonEmptyText,
  add_special_tokens: boolean,
});

export const RERANK_REQUEST = object(
  {
    query: document,
    documents,
    ...POOLING_PROPERTIES,
    top_n: integer({ minimum: 0 }),
    return_documents: boolean,
  },
  ['query', 'documents'],
);

/** The texts have several names. `parseScoreRequest` checks that a request has one pair of them. */
export const SCORE_REQUEST = object({
  queries: oneOrMoreTexts,
  documents: oneOrMoreTexts,
  items: oneOrMoreTexts,
  data_1: oneOrMoreTexts,
  data_2: oneOrMoreTexts,
  text_1: oneOrMoreTexts,
  text_2: oneOrMoreTexts,
  ...POOLING_PROPERTIES,
});

export type SentText = Static<typeof document>;
export type EmbeddingRequest = Static<typeof EMBEDDING_REQUEST>;
export type RerankRequest = Static<typeof RERANK_REQUEST>;
export type ScoreRequest = Static<typeof SCORE_REQUEST>;
