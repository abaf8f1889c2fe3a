import type { DataPull } from '../../api/objects';

/** The names of the hubs, which are the same in every language. */
export const HUB_NAMES: Readonly<Record<DataPull['hub'], string>> = {
  huggingface: 'Hugging Face',
  modelscope: 'ModelScope',
};
