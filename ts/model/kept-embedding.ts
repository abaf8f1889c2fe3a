/**
 * Folders of `capstan quantize` hold the embedding in 16 bits, because transformers reads no quantized one. What
 * Capstan uses in its place is the quantized head, if both are one matrix, or a file beside the weights.
 */

/** A safetensors file of quantized embeddings, under the names of the checkpoint. */
export const EMBEDDING_FILE = 'embedding.capstan';
/** Key of config.json: the quantized head is the embedding too. */
export const TIED_HEAD = 'capstan_tied_head';
