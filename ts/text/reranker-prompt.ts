/** The instruction and the prompt that Qwen3-Reranker was trained with, as its model card gives them. */
const INSTRUCTION = 'Given a web search query, retrieve relevant passages that answer the query';

export const RERANKER_PROMPT = {
  before:
    '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct ' +
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
  after: '<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n',
};

/** Returns the text between both parts. Its end is cut off if the input is too long. */
export function rerankerBody(query: string, document: string, instruction = INSTRUCTION): string {
  return `<Instruct>: ${instruction}\n<Query>: ${query}\n<Document>: ${document}`;
}
