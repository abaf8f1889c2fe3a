import type { ModelTask } from '../../../ts';
import { ApiError } from '../../base/errors';

/** What a client can do with a model of each task. */
const ADVICE: Readonly<Record<ModelTask, string>> = {
  generate:
    'Use /v1/chat/completions or /v1/completions, or start the server with an embedding or reranking model (--task)',
  embed: 'Use /v1/embeddings, /v1/rerank or /v1/score, or start the server with a model that generates text',
  score: 'Use /v1/rerank or /v1/score, or start the server with another model',
};

/**
 * Throws ApiError `unsupported_task` if a route does not work with the model's task.
 * @param expected Undefined: it works with all.
 */
export function checkTask(task: ModelTask, expected: readonly ModelTask[] | undefined, path: string): void {
  if (expected === undefined || expected.includes(task)) return;
  throw new ApiError(
    'unsupported_task',
    `model: expected a model with the task ${expected.join(' or ')} for ${path}, got one with the task ${task}. ${ADVICE[task]}.`,
    { param: 'model' },
  );
}
