/** What the model of the built-in runtime does, as `capstan serve --task` takes it. */
export const MODEL_TASKS = ['generate', 'embed', 'score'] as const;

export type ModelTask = (typeof MODEL_TASKS)[number];
