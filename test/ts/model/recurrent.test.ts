import { readModelConfig } from '../../../ts/model/config';
import { parseJsonObject } from '../../../ts/model/json-file';
import { requiredTensors } from '../../../ts/model/tensors';

const SIZES = {
  hidden_size: 64,
  intermediate_size: 96,
  num_hidden_layers: 4,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  vocab_size: 100,
  max_position_embeddings: 512,
};
const QWEN35 = { ...SIZES, architectures: ['Qwen3_5ForCausalLM'], model_type: 'qwen3_5_text', head_dim: 32 };
const LFM2 = { ...SIZES, architectures: ['Lfm2ForCausalLM'], model_type: 'lfm2' };
const GRANITE = {
  ...SIZES,
  architectures: ['GraniteMoeHybridForCausalLM'],
  model_type: 'granitemoehybrid',
  num_local_experts: 0,
  mamba_n_heads: 8,
  layer_types: ['mamba', 'mamba', 'attention', 'mamba'],
};

function specOf(config: Record<string, unknown>): ReturnType<typeof readModelConfig>['spec'] {
  return readModelConfig(config, undefined).spec;
}

function mixersOf(config: Record<string, unknown>): string[] {
  return specOf(config).layers.map(({ mixer }) => mixer);
}

function shapesOf(config: Record<string, unknown>, layer: number): Record<string, number[]> {
  const { spec, features, family } = readModelConfig(config, undefined);
  return Object.fromEntries(
    requiredTensors(spec, features, family)
      .filter(({ name }) => name.startsWith(`layers.${layer}.`))
      .map(({ checkpointName, shape, storedShape }) => [
        checkpointName.replace(`layers.${layer}.`, ''),
        storedShape ?? shape,
      ]),
  );
}

describe('Qwen3.5', () => {
  test('every fourth layer is attention, with an output gate and a quarter of each head rotated', () => {
    expect(mixersOf(QWEN35)).toEqual(['delta_net', 'delta_net', 'delta_net', 'attention']);
    expect(specOf(QWEN35)).toMatchObject({
      hasOutputGate: true,
      normOffset: 1,
      qkNorm: 'head',
      ropes: [{ rotaryDim: 8 }],
      recurrent: { numHeads: 32, numGroups: 16, headDim: 128, stateSize: 128, convTaps: 4, convChannels: 8192 },
    });
    expect(specOf(QWEN35).layers[0]).toEqual({ mixer: 'delta_net', window: 0, rope: -1, isMoe: false });
    expect(mixersOf({ ...QWEN35, full_attention_interval: 2 })[1]).toBe('attention');
  });

  test('the tensors of a layer of each kind', () => {
    expect(shapesOf(QWEN35, 0)).toMatchObject({
      'linear_attn.in_proj_qkv.weight': [8192, 64],
      'linear_attn.in_proj_z.weight': [4096, 64],
      'linear_attn.in_proj_b.weight': [32, 64],
      'linear_attn.in_proj_a.weight': [32, 64],
      'linear_attn.conv1d.weight': [8192, 1, 4],
      'linear_attn.A_log': [32],
      'linear_attn.dt_bias': [32],
      'linear_attn.norm.weight': [128],
      'linear_attn.out_proj.weight': [64, 4096],
    });
    expect(shapesOf(QWEN35, 3)).toMatchObject({
      'self_attn.q_proj.weight': [256, 64],
      'self_attn.o_proj.weight': [64, 128],
    });
  });

  test('a model of text with images contains it', () => {
    const { architectures, ...text } = QWEN35;
    const outer = {
      architectures: ['Qwen3_5ForConditionalGeneration'],
      model_type: 'qwen3_5',
      text_config: { ...text, tie_word_embeddings: false },
      vision_config: {},
    };
    expect(specOf(outer)).toEqual(specOf({ ...QWEN35, architectures }));
    expect(specOf({ ...outer, tie_word_embeddings: true }).tieWordEmbeddings).toBe(true);
    expect(() => specOf({ ...outer, architectures: ['Qwen3_5ForSequenceClassification'] })).toThrow(
      /got Qwen3_5ForSequenceClassification/,
    );
    expect(() => specOf({ ...outer, text_config: undefined })).toThrow(/got Qwen3_5ForConditionalGeneration/);
  });

  test('Qwen3-Next stores the projections of a group of heads together', () => {
    const config = {
      ...QWEN35,
      architectures: ['Qwen3NextForCausalLM'],
      model_type: 'qwen3_next',
      mlp_only_layers: [0, 1, 2, 3],
    };
    expect(shapesOf(config, 0)).toMatchObject({
      'linear_attn.in_proj_qkvz.weight': [12288, 64],
      'linear_attn.in_proj_ba.weight': [64, 64],
    });
  });

  test.each([
    [
      { linear_num_value_heads: 24 },
      /linear_num_value_heads: expected a multiple of linear_num_key_heads \(16\), got 24/,
    ],
    [{ linear_conv_kernel_dim: 0 }, /linear_conv_kernel_dim: expected an integer from 1/],
    [{ layer_types: ['linear_attention'] }, /layer_types: expected a list of 4 layer types/],
    [{ layer_types: ['full_attention', 'conv', 'sliding_attention', 'conv'] }, /layer_types: .*"sliding_attention"/],
  ])('refuses %j', (changes, message) => expect(() => specOf({ ...QWEN35, ...changes })).toThrow(message));
});

describe('LFM2', () => {
  test('layers are attention by default, or as either key says', () => {
    expect(mixersOf(LFM2)).toEqual(['attention', 'attention', 'attention', 'attention']);
    expect(specOf(LFM2).recurrent).toBeUndefined();
    const mixed = ['short_conv', 'short_conv', 'attention', 'short_conv'];
    expect(mixersOf({ ...LFM2, full_attn_idxs: [2] })).toEqual(mixed);
    expect(mixersOf({ ...LFM2, layer_types: ['conv', 'conv', 'full_attention', 'conv'] })).toEqual(mixed);
  });

  test.each([
    [{ intermediate_size: 12288 }, 8192],
    [{ intermediate_size: 1000, block_multiple_of: 64 }, 704],
    [{ intermediate_size: 1000, block_multiple_of: 64, block_ffn_dim_multiplier: 1.5 }, 1024],
    [{ intermediate_size: 1000, block_ffn_dim_multiplier: null }, 666],
    [{ intermediate_size: 1000, block_auto_adjust_ff_dim: false }, 1000],
    [{ block_ff_dim: 1000, block_auto_adjust_ff_dim: false }, 1000],
  ])('%j gives an MLP of %d', (changes, size) => expect(specOf({ ...LFM2, ...changes }).intermediateSize).toBe(size));

  test('names the tensors of both kinds of layers', () => {
    expect(shapesOf({ ...LFM2, full_attn_idxs: [1], conv_bias: true }, 0)).toMatchObject({
      'operator_norm.weight': [64],
      'conv.in_proj.weight': [192, 64],
      'conv.in_proj.bias': [192],
      'conv.conv.weight': [64, 1, 3],
      'conv.conv.bias': [64],
      'conv.out_proj.bias': [64],
      'ffn_norm.weight': [64],
    });
    expect(specOf({ ...LFM2, norm_eps: 0.01 })).toMatchObject({ rmsNormEps: 0.01, tieWordEmbeddings: true });
  });
});

describe('Granite 4', () => {
  test('has Mamba 2 layers, and attention without positions', () => {
    const spec = specOf(GRANITE);
    expect(spec.layers.map(({ mixer, rope }) => [mixer, rope])).toEqual([
      ['mamba2', -1],
      ['mamba2', -1],
      ['attention', -1],
      ['mamba2', -1],
    ]);
    expect(spec.recurrent).toEqual({
      numHeads: 8,
      numGroups: 1,
      headDim: 16,
      stateSize: 256,
      convTaps: 4,
      convChannels: 640,
    });
    expect(specOf({ ...GRANITE, position_embedding_type: 'rope' }).layers[2].rope).toBe(0);
    expect(spec.intermediateSize).toBe(1024);
    expect(spec.moe).toBeUndefined();
  });

  test('reads a limit of time steps as Python writes it, and refuses another one', () => {
    const parsed = parseJsonObject('{"time_step_limit": [0.0, Infinity], "a": "Infinity \\" NaN"}', 'config.json');
    expect(parsed).toEqual({ time_step_limit: [0, 'Infinity'], a: 'Infinity " NaN' });
    expect(mixersOf({ ...GRANITE, ...parsed })[0]).toBe('mamba2');
    expect(mixersOf({ ...GRANITE, time_step_limit: [0, { __float__: 'Infinity' }] })[0]).toBe('mamba2');
    for (const limit of [[0.1, 'Infinity'], [0, 0.5], 3])
      expect(() => specOf({ ...GRANITE, time_step_limit: limit })).toThrow(/time_step_limit: expected \[0, Infinity\]/);
  });

  test.each([
    [{ mamba_n_groups: 3 }, /mamba_n_heads: expected a multiple of mamba_n_groups \(3\), got 8/],
    [{ mamba_d_head: 12 }, /mamba_d_head: expected mamba_expand \* hidden_size \(128\)/],
    [{ mamba_n_heads: 7 }, /mamba_d_head: expected/],
  ])('refuses %j', (changes, message) => expect(() => specOf({ ...GRANITE, ...changes })).toThrow(message));
});
