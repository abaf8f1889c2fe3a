import type { ModelTask } from '../deployments/model-task';

/** Example requests by the task of the model. */
export const EXAMPLES: Readonly<Record<ModelTask, { path: string; fields: object }>> = {
  generate: {
    path: '/v1/chat/completions',
    fields: { messages: [{ role: 'user', content: 'Hello' }], stream: true },
  },
  embed: { path: '/v1/embeddings', fields: { input: ['Hello', 'Good morning'] } },
  score: { path: '/v1/rerank', fields: { query: 'How are you?', documents: ['I am fine.', 'It is raining.'] } },
};
