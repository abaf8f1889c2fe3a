/** The help of an argument that names a model. */
export const MODEL_ARGUMENT =
  "GGUF file, model directory in Hugging Face's layout, name on the hub (ORG/NAME[@revision][:quantization or file]), or demo, the embedded model (default: demo)";

/** The help of an argument that names a model from the hub. */
export const HUB_MODEL_ARGUMENT = 'name on the hub: ORG/NAME[@revision][:quantization or file]';

export const HUBS = ['huggingface', 'modelscope'] as const;

export const HUB_HELP =
  'where models are downloaded from: huggingface (or the mirror in HF_ENDPOINT), or modelscope (default: huggingface)';
