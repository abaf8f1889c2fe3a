/** Requests with texts, and their results, for embedding models and rerankers. */

/** A text and its embedding. */
export interface Embedded {
  text: string;
  size: number;
  first: readonly number[];
  /** Cosine of the angle to the first text. */
  similarity: number;
}

export interface Ranked {
  text: string;
  score: number;
}

const NUM_FIRST_VALUES = 5;

/** Returns the different lines that are not empty. */
export function linesOf(text: string): string[] {
  const lines = text.split('\n').map((line) => line.trim());
  return [...new Set(lines)].filter((line) => line !== '');
}

/** Reads the response of /v1/embeddings. Returns undefined for any other JSON. */
export function toEmbedded(response: unknown, texts: readonly string[]): Embedded[] | undefined {
  const { data } = (response ?? {}) as { data?: { embedding?: unknown }[] };
  if (!Array.isArray(data) || data.length !== texts.length) return undefined;
  const vectors = data.map(({ embedding }) => embedding);
  if (!vectors.every(isVector)) return undefined;
  return vectors.map((vector, i) => ({
    text: texts[i],
    size: vector.length,
    first: vector.slice(0, NUM_FIRST_VALUES),
    similarity: cosine(vectors[0], vector),
  }));
}

/** Reads the response of /v1/rerank. Returns undefined for any other JSON. */
export function toRanked(response: unknown, texts: readonly string[]): Ranked[] | undefined {
  const { results } = (response ?? {}) as { results?: { index?: unknown; relevance_score?: unknown }[] };
  if (!Array.isArray(results)) return undefined;
  const ranked = results.map(({ index, relevance_score: score }) => ({ text: texts[Number(index)], score }));
  return ranked.every((result): result is Ranked => result.text !== undefined && typeof result.score === 'number')
    ? ranked
    : undefined;
}

function isVector(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((item) => typeof item === 'number');
}

function cosine(a: readonly number[], b: readonly number[]): number {
  const dot = a.reduce((sum, value, i) => sum + value * b[i], 0);
  return dot / (Math.hypot(...a) * Math.hypot(...b));
}
