import { PLAIN_DECODER, readModelConfig } from '../../../ts/model/config';

const LLAMA = {
  architectures: ['LlamaForCausalLM'],
  model_type: 'llama',
  hidden_size: 64,
  intermediate_size: 128,
  num_hidden_layers: 4,
  num_attention_heads: 8,
  num_key_value_heads: 2,
  vocab_size: 100,
  max_position_embeddings: 512,
  rms_norm_eps: 1e-5,
  rope_theta: 500000,
  eos_token_id: 2,
};
const QWEN2 = { ...LLAMA, architectures: ['Qwen2ForCausalLM'], model_type: 'qwen2' };

function specOf(config: Record<string, unknown>): ReturnType<typeof readModelConfig>['spec'] {
  return readModelConfig(config, undefined).spec;
}

function without(config: Record<string, unknown>, ...keys: string[]): Record<string, unknown> {
  return Object.fromEntries(Object.entries(config).filter(([key]) => !keys.includes(key)));
}

function layersOf(...windows: number[]): object[] {
  return windows.map((window) => ({ mixer: 'attention', window, rope: 0, isMoe: false }));
}

test('maps config.json to a spec', () => {
  expect(specOf(LLAMA)).toEqual({
    ...PLAIN_DECODER,
    vocabSize: 100,
    hiddenSize: 64,
    intermediateSize: 128,
    numHeads: 8,
    numKvHeads: 2,
    headDim: 8,
    rmsNormEps: 1e-5,
    hiddenAct: 'silu',
    tieWordEmbeddings: false,
    attentionScale: 1 / Math.sqrt(8),
    layers: layersOf(0, 0, 0, 0),
    maxPositionEmbeddings: 512,
    ropes: [
      {
        type: 'default',
        theta: 500000,
        rotaryDim: 8,
        factor: 1,
        originalMaxPositions: 512,
        lowFreqFactor: 1,
        highFreqFactor: 1,
        betaFast: 32,
        betaSlow: 1,
        truncate: true,
        attentionFactor: 1,
        queryScaleGrowth: 0,
      },
    ],
  });
});

describe('defaults of the classes of transformers', () => {
  test('Llama: as many KV heads as query heads, 2,048 positions', () => {
    expect(
      specOf(without(LLAMA, 'num_key_value_heads', 'max_position_embeddings', 'rms_norm_eps', 'rope_theta')),
    ).toMatchObject({
      numKvHeads: 8,
      maxPositionEmbeddings: 2048,
      rmsNormEps: 1e-6,
      ropes: [{ theta: 10000 }],
    });
  });

  test('Mistral: 8 KV heads, a window of 4,096 if the key is absent, no window if it is null', () => {
    const mistral = { ...LLAMA, architectures: ['MistralForCausalLM'], model_type: 'mistral' };
    expect(specOf(without(mistral, 'num_key_value_heads'))).toMatchObject({
      numKvHeads: 8,
      layers: layersOf(4096, 4096, 4096, 4096),
    });
    expect(specOf({ ...mistral, sliding_window: null }).layers).toEqual(layersOf(0, 0, 0, 0));
  });

  test('Qwen3: a head dimension of 128', () => {
    const qwen3 = { ...LLAMA, architectures: ['Qwen3ForCausalLM'], model_type: 'qwen3' };
    expect(specOf(qwen3)).toMatchObject({ headDim: 128, ropes: [{ rotaryDim: 128 }] });
    expect(specOf(qwen3).qkNorm).toBe('head');
    expect(readModelConfig(qwen3, undefined).features).toEqual({
      qkvBias: false,
      outputBias: false,
      mlpBias: false,
    });
  });

  test('null for KV heads means as many as query heads', () => {
    expect(specOf({ ...QWEN2, num_key_value_heads: null }).numKvHeads).toBe(8);
  });
});

describe('sliding windows of Qwen', () => {
  test.each([
    ['off by default', { sliding_window: 32, max_window_layers: 2 }, [0, 0, 0, 0]],
    [
      'from the first windowed layer on',
      { use_sliding_window: true, sliding_window: 32, max_window_layers: 2 },
      [0, 0, 32, 32],
    ],
    [
      'by layer types, which win',
      {
        use_sliding_window: true,
        sliding_window: 32,
        max_window_layers: 4,
        layer_types: ['sliding_attention', 'full_attention', 'sliding_attention', 'full_attention'],
      },
      [32, 0, 32, 0],
    ],
    [
      'layer types without a window',
      { use_sliding_window: false, sliding_window: 32, layer_types: Array(4).fill('sliding_attention') },
      [0, 0, 0, 0],
    ],
  ])('%s', (_name, changes, windows) => {
    expect(specOf({ ...QWEN2, ...changes }).layers).toEqual(layersOf(...windows));
  });
});

describe('rotary parameters, in both spellings', () => {
  const both = (scaling: Record<string, unknown>) => [
    specOf({ ...LLAMA, rope_scaling: scaling }).ropes[0],
    specOf({
      ...LLAMA,
      rope_scaling: Object.fromEntries(
        Object.entries(scaling).map(([key, value]) => [key === 'rope_type' ? 'type' : key, value]),
      ),
    }).ropes[0],
    specOf({ ...without(LLAMA, 'rope_theta'), rope_parameters: { ...scaling, rope_theta: 500000 } }).ropes[0],
  ];

  test.each([
    ['linear', { rope_type: 'linear', factor: 4 }, { type: 'linear', factor: 4, originalMaxPositions: 512 }],
    ['dynamic', { rope_type: 'dynamic', factor: 2 }, { type: 'dynamic', factor: 2, originalMaxPositions: 512 }],
    [
      'Llama 3',
      { rope_type: 'llama3', factor: 8, low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 64 },
      { type: 'llama3', factor: 8, lowFreqFactor: 1, highFreqFactor: 4, originalMaxPositions: 64 },
    ],
    [
      'YaRN with its defaults',
      { rope_type: 'yarn', factor: 4 },
      {
        type: 'yarn',
        factor: 4,
        originalMaxPositions: 512,
        betaFast: 32,
        betaSlow: 1,
        truncate: true,
        attentionFactor: 0.1 * Math.log(4) + 1,
      },
    ],
    [
      'YaRN, everything said',
      {
        rope_type: 'yarn',
        factor: 8,
        original_max_position_embeddings: 128,
        attention_factor: 1.5,
        beta_fast: 4,
        beta_slow: 0.5,
        truncate: false,
      },
      { originalMaxPositions: 128, betaFast: 4, betaSlow: 0.5, truncate: false, attentionFactor: 1.5 },
    ],
    [
      'YaRN with two scales',
      { rope_type: 'yarn', factor: 8, mscale: 2, mscale_all_dim: 0.5 },
      { attentionFactor: (0.2 * Math.log(8) + 1) / (0.05 * Math.log(8) + 1) },
    ],
    ['an explicit default', { rope_type: 'default' }, { type: 'default', theta: 500000 }],
  ])('%s', (_name, scaling, expected) => {
    for (const rope of both(scaling)) {
      expect(rope).toMatchObject(expected);
      expect(rope.theta).toBe(500000);
    }
  });

  test('partial rotation', () => {
    expect(specOf({ ...LLAMA, partial_rotary_factor: 0.5 }).ropes[0].rotaryDim).toBe(4);
  });

  test('an original length at the top level takes precedence', () => {
    expect(
      specOf({
        ...LLAMA,
        original_max_position_embeddings: 32,
        rope_scaling: { type: 'yarn', factor: 2, original_max_position_embeddings: 64 },
      }).ropes[0].originalMaxPositions,
    ).toBe(32);
  });
});

test('an empty list of architectures counts as missing', () => {
  expect(readModelConfig({ ...QWEN2, architectures: [] }, undefined).family.modelType).toBe('qwen2');
});

test('end-of-sequence ids are the union of both files', () => {
  expect(readModelConfig({ ...LLAMA, eos_token_id: [5, 2] }, { eos_token_id: 7 }).eosTokenIds).toEqual([7, 5, 2]);
  expect(readModelConfig(without(LLAMA, 'eos_token_id'), undefined).eosTokenIds).toEqual([2]);
  expect(readModelConfig(without(QWEN2, 'eos_token_id'), undefined).eosTokenIds).toEqual([]);
});

test('sampling defaults come from generation_config.json', () => {
  const defaults = (generation: Record<string, unknown>) => readModelConfig(LLAMA, generation).samplingDefaults;
  expect(defaults({ temperature: 0.6, top_p: 0.9, top_k: 50, repetition_penalty: 1.05 })).toEqual({
    temperature: 0.6,
    topP: 0.9,
    topK: 50,
    repetitionPenalty: 1.05,
  });
  expect(defaults({ do_sample: false, temperature: 0.6, repetition_penalty: 1.05 })).toEqual({
    temperature: 0,
    repetitionPenalty: 1.05,
  });
  expect(defaults({ temperature: 0 })).toEqual({ temperature: 0 });
  expect(defaults({ top_p: null })).toEqual({});
  expect(defaults({ top_k: -1 })).toEqual({ topK: 0 });
});

describe('refusals', () => {
  test.each([
    [
      'DeepSeek',
      { architectures: ['DeepseekV3ForCausalLM'], model_type: 'deepseek_v3' },
      /DeepseekV3ForCausalLM \(multi-head latent attention, not supported yet\)/,
    ],
    [
      'an unknown one',
      { architectures: ['GPT2LMHeadModel'], model_type: 'gpt2' },
      /expected one of the architectures LlamaForCausalLM, .* got GPT2LMHeadModel/,
    ],
    ['another head', { architectures: ['LlamaForTokenClassification'] }, /got LlamaForTokenClassification/],
    [
      'no name at all',
      { architectures: undefined, model_type: undefined },
      /got a model without model_type and architectures/,
    ],
    [
      'an unknown quantization',
      { quantization_config: { quant_method: 'hqq' } },
      /quant_method: expected one of awq, .* got hqq/,
    ],
    ['an unknown activation', { hidden_act: 'relu2' }, /hidden_act: expected one of silu, .* got "relu2"/],
    [
      'an unknown rope type',
      { rope_scaling: { rope_type: 'spiral' } },
      /rope_type: expected one of default, .* got "spiral"/,
    ],
    [
      'rotary parameters per layer type',
      { rope_parameters: { full_attention: { rope_type: 'default' } } },
      /per layer type/,
    ],
  ])('%s is unsupported_model by name', (_name, changes, message) => {
    expect(() => specOf({ ...LLAMA, ...changes })).toThrow(
      expect.objectContaining({
        code: 'unsupported_model',
        message: expect.stringMatching(message) as string,
      }) as Error,
    );
  });

  test.each([
    [
      'a size that is text',
      { hidden_size: '64' },
      'config.json: hidden_size: expected an integer from 1 to 2147483647, got "64"',
    ],
    [
      'zero layers',
      { num_hidden_layers: 0 },
      'config.json: num_hidden_layers: expected an integer from 1 to 4096, got 0',
    ],
    [
      'a billion layers',
      { num_hidden_layers: 1e9 },
      'config.json: num_hidden_layers: expected an integer from 1 to 4096, got 1000000000',
    ],
    [
      'KV heads that do not divide',
      { num_key_value_heads: 3 },
      'config.json: num_key_value_heads: expected a divisor of num_attention_heads (8), got 3',
    ],
    ['heads that do not divide the hidden size', { num_attention_heads: 6 }, /head_dim: expected an integer/],
    ['a negative epsilon', { rms_norm_eps: -1 }, /rms_norm_eps: expected a number above 0, got -1/],
    [
      'a factor that is missing',
      { rope_scaling: { rope_type: 'linear' } },
      'config.json: rope_scaling: factor: expected a number above 0, but it is missing',
    ],
    [
      'layer types of another length',
      { ...QWEN2, layer_types: ['full_attention'] },
      /layer_types: expected a list of 4 layer types/,
    ],
    [
      'Gemma 4 with experts and wide MLPs',
      {
        model_type: 'gemma4_text',
        architectures: undefined,
        num_kv_shared_layers: 1,
        use_double_wide_mlp: true,
        enable_moe_block: true,
        num_experts: 4,
        top_k_experts: 2,
        moe_intermediate_size: 16,
      },
      'config.json: use_double_wide_mlp: expected false in a model with experts, got true',
    ],
    [
      'an EOS that is text',
      { eos_token_id: '</s>' },
      /eos_token_id: expected a token id or a list of them, got "<\/s>"/,
    ],
  ])('%s is invalid_model', (_name, changes, message) => {
    expect(() => specOf({ ...LLAMA, ...changes })).toThrow(
      expect.objectContaining({
        code: 'invalid_model',
        message: typeof message === 'string' ? message : (expect.stringMatching(message) as string),
      }) as Error,
    );
  });
});

describe('models of text with images', () => {
  const text = { ...without(LLAMA, 'architectures', 'model_type'), sliding_window: 8 };
  const gemma = { architectures: ['Gemma3ForConditionalGeneration'], model_type: 'gemma3', eos_token_id: [1, 106] };

  test('the text part of Gemma 3 has the defaults of its class', () => {
    const { family, spec, eosTokenIds } = readModelConfig(
      { ...gemma, text_config: { model_type: 'gemma3_text', hidden_size: 64, num_hidden_layers: 6 } },
      undefined,
    );
    expect(family.modelType).toBe('gemma3_text');
    expect(spec).toMatchObject({ numHeads: 8, headDim: 256, vocabSize: 262208, hiddenAct: 'gelu_tanh', normOffset: 1 });
    expect(spec.layers.map(({ window }) => window)).toEqual([4096, 4096, 4096, 4096, 4096, 0]);
    expect(eosTokenIds).toEqual([1, 106]);
  });

  test('the row is that of the text part', () => {
    const outer = { architectures: ['Mistral3ForConditionalGeneration'], model_type: 'mistral3' };
    const familyOfText = (modelType: string) =>
      readModelConfig({ ...outer, text_config: { ...text, model_type: modelType } }, undefined).family.modelType;
    expect(familyOfText('mistral')).toBe('mistral');
    expect(familyOfText('ministral3')).toBe('ministral3');
  });

  test('reads the outer quantization when the part of the text model holds null', () => {
    const quantization_config = { quant_method: 'fp8', weight_block_size: [128, 128] };
    const part = { ...text, model_type: 'gemma3_text', quantization_config: null };
    const config = { ...gemma, quantization_config, text_config: part };
    expect(readModelConfig(config, undefined).quantization?.title).toBe('FP8');
  });

  test('the quantization stands in the outer config', () => {
    const quantization_config = { quant_method: 'fp8', weight_block_size: [128, 128] };
    const config = { ...gemma, quantization_config, text_config: { ...text, model_type: 'gemma3_text' } };
    expect(readModelConfig(config, undefined).quantization?.title).toBe('FP8');
  });
});

test('a missing model type does not change the model', () => {
  const gemma = { ...LLAMA, architectures: ['Gemma3ForCausalLM'], model_type: 'gemma3_text' };
  expect(specOf(without(gemma, 'model_type'))).toEqual(specOf(gemma));
});

test('reward models, and tokens that see later ones in other families, are refused', () => {
  expect(() => specOf({ ...LLAMA, use_bidirectional_attention: true })).toThrow('use_bidirectional_attention');
  expect(() => specOf({ ...QWEN2, architectures: ['Qwen2ForRewardModel'] })).toThrow('got Qwen2ForRewardModel');
});

test('more experts than the engine has are refused before their tensors are listed', () => {
  const moe = { ...LLAMA, architectures: ['Qwen3MoeForCausalLM'], model_type: 'qwen3_moe', num_hidden_layers: 4096 };
  expect(() => specOf({ ...moe, num_experts: 100_000 })).toThrow('an integer from 1 to 4096');
  expect(() => specOf({ ...moe, num_experts: 4096 })).toThrow('experts in all layers');
});

test('gpt-oss without rotary parameters has those of its class', () => {
  const gptOss = { ...without(LLAMA, 'rope_theta'), architectures: ['GptOssForCausalLM'], model_type: 'gpt_oss' };
  expect(specOf(gptOss).ropes[0]).toMatchObject({
    type: 'yarn',
    factor: 32,
    originalMaxPositions: 4096,
    theta: 150000,
  });
});

test('Qwen2-MoE: the window is in every second of the first layers', () => {
  const config = { ...QWEN2, architectures: ['Qwen2MoeForCausalLM'], model_type: 'qwen2_moe', sliding_window: 8 };
  const windows = specOf({ ...config, use_sliding_window: true, max_window_layers: 2 }).layers.map(
    ({ window }) => window,
  );
  expect(windows).toEqual([8, 0, 0, 0]);
});

test('Cohere 2: the defaults of its class, and no rotation in full layers', () => {
  const spec = specOf({ model_type: 'cohere2' });
  expect(spec).toMatchObject({ normKind: 'layer', rmsNormEps: 1e-5, isParallel: true, logitScale: 0.0625 });
  expect(spec.tieWordEmbeddings).toBe(true);
  expect(spec.layers.slice(0, 4).map(({ window, rope }) => [window, rope])).toEqual([
    [4096, 0],
    [4096, 0],
    [4096, 0],
    [0, -1],
  ]);
});

test('the rotation of a class without parameters in the config: its base counts, not that of the config', () => {
  const stated = { rope_theta: 500, rope_scaling: null };
  expect(specOf({ model_type: 'apertus', ...stated }).ropes[0]).toMatchObject({ type: 'llama3', theta: 12e6 });
  expect(specOf({ model_type: 'ministral3', ...stated }).ropes[0]).toMatchObject({ type: 'yarn', theta: 1e6 });
  expect(specOf({ model_type: 'gpt_oss', ...stated }).ropes[0]).toMatchObject({ type: 'yarn', theta: 500 });
});

test('Gemma 3 has no soft cap of attention, whatever its config says', () => {
  expect(specOf({ model_type: 'gemma3_text', attn_logit_softcapping: 50 }).attentionSoftCap).toBe(0);
  expect(specOf({ model_type: 'gemma2', attn_logit_softcapping: 40 }).attentionSoftCap).toBe(40);
});

test('a head size of null is that of the hidden size, also in classes with a default', () => {
  const sizes = { hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2 };
  for (const model_type of ['llama', 'ernie4_5', 'seed_oss', 'ministral3', 'gpt_oss'])
    expect(specOf({ model_type, ...sizes, head_dim: null }).headDim).toBe(16);
  expect(specOf({ model_type: 'ernie4_5', ...sizes }).headDim).toBe(128);
});

test('Apertus: an activation of its class, and the rotation of Llama 3', () => {
  expect(specOf({ model_type: 'apertus' })).toMatchObject({
    hiddenAct: 'xielu',
    hasGatedMlp: false,
    qkNorm: 'head',
    ropes: [{ type: 'llama3', theta: 12e6, factor: 8 }],
  });
  expect(specOf({ model_type: 'apertus', hidden_act: 'silu' }).hiddenAct).toBe('silu');
  expect(() => specOf({ ...LLAMA, hidden_act: 'xielu' })).toThrow('hidden_act');
});

test('Gemma 4: a full layer that per_layer_config leaves out has the sizes of all layers', () => {
  const config = { model_type: 'gemma4_text', hidden_size: 64, num_hidden_layers: 2, head_dim: 32 };
  const layer_types = ['sliding_attention', 'full_attention'];
  const fullSizeOf = (more: Record<string, unknown>) => specOf({ ...config, layer_types, ...more }).layers[1].headDim;
  expect(fullSizeOf({})).toBe(512);
  expect(fullSizeOf({ per_layer_config: {} })).toBe(32);
  expect(fullSizeOf({ per_layer_config: { 1: { head_dim: 64 } } })).toBe(64);
});

test('Gemma 4: experts beside the dense MLP only if the config has them', () => {
  const config = {
    model_type: 'gemma4_text',
    hidden_size: 64,
    num_experts: 8,
    top_k_experts: 2,
    moe_intermediate_size: 32,
  };
  expect(specOf(config).moe).toBeUndefined();
  const { moe, layers } = specOf({ ...config, enable_moe_block: true });
  expect(layers.every(({ isMoe }) => isMoe)).toBe(true);
  expect(moe).toMatchObject({ numExperts: 8, topK: 2, sharedIntermediateSize: 9216, logitScale: 1 / 8 });
  expect(() => specOf({ ...config, enable_moe_block: true, top_k_experts: undefined })).toThrow('top_k_experts');
});
