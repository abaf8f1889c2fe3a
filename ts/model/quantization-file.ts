/** Files that describe a quantization. Most checkpoints have `quantization_config` in config.json instead. */
import type { JsonObject } from './json-file';
import { readJsonFile } from './json-file';

export const QUANTIZATION_FILES: Readonly<Record<string, (file: JsonObject) => JsonObject>> = {
  /** Of AutoGPTQ. */
  'quantize_config.json': (file) => ({ quant_method: 'gptq', ...file }),
  /** Of AutoAWQ. */
  'quant_config.json': (file) => ({ quant_method: 'awq', ...file }),
  /** Of ModelOpt. */
  'hf_quant_config.json': ({ quantization }) => ({ quant_method: 'modelopt', ...(quantization as JsonObject) }),
};

/** Returns config.json with the quantization of the first of these files, unless it names one itself. */
export async function withQuantizationFile(modelDir: string, config: JsonObject): Promise<JsonObject> {
  if ((config.quantization_config ?? config.compression_config ?? undefined) !== undefined) return config;
  for (const [name, convert] of Object.entries(QUANTIZATION_FILES)) {
    const file = await readJsonFile(modelDir, name);
    if (file !== undefined) return { ...config, quantization_config: convert(file) };
  }
  return config;
}
