import { setImmediate as nextTurn } from 'node:timers/promises';
import { type PromptUsage, wireUsage } from './usage';

/** Values that become JSON text between two turns of the event loop. They take about 2 ms. */
const VALUES_PER_TURN = 16_384;

export interface EmbeddingHead {
  id: string;
  created: number;
  model: string;
}

/** Returns the JSON text of a response. Yields to the event loop, because it may have millions of numbers. */
export async function embeddingsText(
  { id, created, model }: EmbeddingHead,
  embeddings: readonly Float32Array[],
  usage: PromptUsage,
  { isBase64, hasPrefixCache }: { isBase64: boolean; hasPrefixCache: boolean },
): Promise<string> {
  const items: string[] = [];
  let numValues = 0;
  for (const [index, embedding] of embeddings.entries()) {
    if (numValues >= VALUES_PER_TURN) {
      await nextTurn();
      numValues = 0;
    }
    numValues += embedding.length;
    const value = isBase64 ? base64(embedding) : Array.from(embedding);
    items.push(JSON.stringify({ object: 'embedding', index, embedding: value }));
  }
  const head = JSON.stringify({ id, object: 'list', created, model }).slice(0, -1);
  return `${head},"data":[${items.join(',')}],"usage":${JSON.stringify(wireUsage(usage, hasPrefixCache))}}`;
}

/** Returns the bytes of the values. The processors that we support are little-endian, as the clients expect. */
function base64({ buffer, byteOffset, byteLength }: Float32Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString('base64');
}
