import type { NativeModelSpec, NativeRecurrent, NativeTensor } from '../addon-types';
import type { ExpertTensors, Family, HeadLayer, ModelFeatures } from './family';
import { MTP_LAYER, MTP_NAMES } from './mtp';

/** A tensor that the spec needs. */
export interface RequiredTensor {
  /** Canonical name. */
  name: string;
  /** Name in the checkpoint, without the prefix `model.`. */
  checkpointName: string;
  shape: number[];
  /** Where the tensor is if the checkpoint has none of the first name. */
  or?: Pick<RequiredTensor, 'checkpointName' | 'stacked' | 'storedShape'>;
  /** The complete tensor's shape in the checkpoint. Default: that of `stacked`, else `shape`, transposed if need be. */
  storedShape?: number[];
  /** The checkpoint's tensor has one more dimension, and this is one entry of it. */
  stacked?: { count: number; index: number };
  /** The tensor in a GGUF file has `count` rows (of a bias: entries), and these begin at `first`. */
  rows?: { count: number; first: number };
  /** In groups of `size` rows (of a bias: entries), the first `rows` are stored as pairs. */
  interleaved?: { size: number; rows: number };
  /** The checkpoint holds the transposed matrix. */
  isTransposed?: boolean;
  /** A folder of the model whose own file holds it. */
  folder?: string;
}

/** Returns the fields of interleaved rows for the addon. */
export function storedOrder({
  interleaved,
}: Pick<RequiredTensor, 'interleaved'>): Pick<NativeTensor, 'interleavedHeadDim' | 'interleavedRows'> {
  return interleaved === undefined ? {} : { interleavedHeadDim: interleaved.size, interleavedRows: interleaved.rows };
}

/** Names of Llama, and of Qwen3.5 for recurrent layers, relative to the layer, by canonical name. */
const LLAMA_NAMES: Readonly<Record<string, string>> = {
  layers: 'layers',
  input_norm: 'input_layernorm',
  attention_out_norm: 'post_attention_layernorm',
  mlp_norm: 'post_attention_layernorm',
  mlp_out_norm: 'post_feedforward_layernorm',
  q_proj: 'self_attn.q_proj',
  k_proj: 'self_attn.k_proj',
  v_proj: 'self_attn.v_proj',
  qkv_proj: 'self_attn.qkv_proj',
  o_proj: 'self_attn.o_proj',
  q_norm: 'self_attn.q_norm',
  k_norm: 'self_attn.k_norm',
  sinks: 'self_attn.sinks',
  gate_proj: 'mlp.gate_proj',
  up_proj: 'mlp.up_proj',
  gate_up_proj: 'mlp.gate_up_proj',
  down_proj: 'mlp.down_proj',
  in_proj_qkv: 'linear_attn.in_proj_qkv',
  in_proj_z: 'linear_attn.in_proj_z',
  in_proj_b: 'linear_attn.in_proj_b',
  in_proj_a: 'linear_attn.in_proj_a',
  conv: 'linear_attn.conv1d',
  a_log: 'linear_attn.A_log',
  dt_bias: 'linear_attn.dt_bias',
  mixer_norm: 'linear_attn.norm',
  out_proj: 'linear_attn.out_proj',
};

/** Returns the tensors of a model under the names of its checkpoint. */
export function requiredTensors(
  spec: NativeModelSpec,
  features: ModelFeatures,
  family: Pick<Family, 'names'> = {},
): RequiredTensor[] {
  const { hiddenSize: hidden, vocabSize } = spec;
  const outer = (name: string, shape: number[], part: 'weight' | 'bias' = 'weight'): RequiredTensor => ({
    name: `${name}.${part}`,
    ...checkpointNames(family.names?.[name] ?? name, part),
    shape,
  });
  const norm = (name: string): RequiredTensor[] => [
    outer(name, [hidden]),
    ...(features.hasNormBias ? [outer(name, [hidden], 'bias')] : []),
  ];
  const wanted = [outer('embed_tokens', [vocabSize, hidden])];
  const { numPositions, numTokenTypes, hasNorm, numDistances } = spec.embedding ?? NO_EMBEDDING;
  if (numPositions > 0) wanted.push(outer('position_embeddings', [numPositions, hidden]));
  if (numTokenTypes > 0) wanted.push(outer('token_type_embeddings', [numTokenTypes, hidden]));
  if (numDistances > 0) wanted.push(outer('distance_biases', [numDistances, spec.numHeads]));
  if (hasNorm) wanted.push(...norm('embed_norm'));
  if (spec.hasFinalNorm) wanted.push(...norm('norm'));
  if (!spec.tieWordEmbeddings) wanted.push(outer('lm_head', [vocabSize, hidden]));
  if (spec.perLayerInputSize > 0) {
    const size = spec.layers.length * spec.perLayerInputSize;
    wanted.push(
      outer('per_layer_table', [vocabSize, size]),
      outer('per_layer_projection', [size, hidden]),
      outer('per_layer_norm', [spec.perLayerInputSize]),
    );
  }
  if (spec.hasMtp) wanted.push(...mtpTensors(hidden));
  for (let layer = 0; layer < spec.layers.length; layer++)
    for (const tensor of layerTensors(spec, features, family.names, layer)) wanted.push(tensor);
  return wanted;
}

/** Returns the tensors of one layer. */
export function layerTensors(
  spec: NativeModelSpec,
  features: ModelFeatures,
  names: Family['names'],
  layer: number,
): RequiredTensor[] {
  return new LayerTensors(spec, features, { ...LLAMA_NAMES, ...names }, layer).list();
}

/** The tensors of an MTP head without its layer. */
function mtpTensors(hidden: number): RequiredTensor[] {
  return Object.entries(MTP_NAMES).map(([name, checkpointName]) => ({
    name: `mtp.${name}.weight`,
    checkpointName: `${checkpointName}.weight`,
    shape: name === 'fc' ? [hidden, 2 * hidden] : [hidden],
  }));
}

const NO_EMBEDDING = { numPositions: 0, numTokenTypes: 0, hasNorm: false, numDistances: 0 };

/** Old checkpoints of BERT have another name for the weights and biases of norms. */
function checkpointNames(
  name: string,
  part: 'weight' | 'bias',
): Pick<RequiredTensor, 'checkpointName'> & { or?: RequiredTensor['or'] } {
  const checkpointName = `${name}.${part}`;
  if (!name.endsWith('LayerNorm')) return { checkpointName };
  return { checkpointName, or: { checkpointName: `${name}.${part === 'weight' ? 'gamma' : 'beta'}` } };
}

/** Returns the tensors of a pooling head whose first input has the hidden size. */
export function headTensors(head: readonly HeadLayer[], hiddenSize: number): RequiredTensor[] {
  return head.flatMap(({ outputSize, tensors }, layer) => {
    const inputSize = layer === 0 ? hiddenSize : head[layer - 1].outputSize;
    const { name, hasBias, norm, folder } = tensors;
    const add = (canonical: string, checkpointName: string, shape: number[]): RequiredTensor => ({
      name: `head.${layer}.${canonical}`,
      checkpointName,
      shape,
      ...(folder !== undefined && { folder }),
    });
    return [
      add('weight', `${name}.weight`, [outputSize, inputSize]),
      ...(hasBias ? [add('bias', `${name}.bias`, [outputSize])] : []),
      ...(norm === undefined ? [] : [add('norm.weight', `${norm.name}.weight`, [outputSize])]),
      ...(norm?.hasBias ? [add('norm.bias', `${norm.name}.bias`, [outputSize])] : []),
    ];
  });
}

class LayerTensors {
  readonly #tensors: RequiredTensor[] = [];

  constructor(
    readonly spec: NativeModelSpec,
    readonly features: ModelFeatures,
    readonly names: Readonly<Record<string, string>>,
    readonly layer: number,
  ) {}

  list(): RequiredTensor[] {
    const { norms, hiddenSize } = this.spec;
    const { hasNormBias } = this.features;
    const norm = (name: string): void => this.#named(name, [hiddenSize], hasNormBias);
    if (norms.input && !this.spec.layers[this.layer].lacksInputNorm) norm('input_norm');
    if (this.spec.layers[this.layer].mixer === 'attention') this.#addAttention();
    else this.#addRecurrent(this.spec.recurrent!);
    if (norms.attentionOut) norm('attention_out_norm');
    if (norms.mlp) norm('mlp_norm');
    if (this.spec.layers[this.layer].isMoe) this.#addExperts(this.features.experts!);
    else this.#addMlp();
    if (norms.mlpOut) norm('mlp_out_norm');
    if (this.spec.perLayerInputSize > 0) this.#addPerLayerInput(this.spec.perLayerInputSize);
    if (this.spec.hasLayerScales) this.#push('layer_scale', this.names.layer_scale, [1]);
    return this.#tensors;
  }

  #push(name: string, checkpointName: string, shape: number[], rest: Partial<RequiredTensor> = {}): void {
    this.#tensors.push({
      name: `layers.${this.layer}.${name}`,
      checkpointName: this.#inLayer(checkpointName),
      shape,
      ...rest,
    });
  }

  #inLayer(name: string): string {
    const isOfHead = this.spec.hasMtp && this.layer === this.spec.layers.length - 1;
    return `${isOfHead ? MTP_LAYER : `${this.names.layers}.${this.layer}`}.${name}`;
  }

  /** Adds the weight, and the bias if there is one. `source` is the canonical name of the tensor that holds it. */
  #named(name: string, shape: number[], hasBias = false, rest: Partial<RequiredTensor> = {}, source = name): void {
    const add = (part: 'weight' | 'bias', ownShape: number[], more: Partial<RequiredTensor>): void => {
      const { checkpointName, or } = checkpointNames(this.names[source], part);
      const other = or && { or: { ...or, checkpointName: this.#inLayer(or.checkpointName) } };
      this.#push(`${name}.${part}`, checkpointName, ownShape, { ...more, ...other });
    };
    add('weight', shape, rest);
    if (hasBias) add('bias', [shape[0]], { ...rest, storedShape: [shape[0]] });
  }

  #addPerLayerInput(size: number): void {
    const { hiddenSize: hidden } = this.spec;
    this.#named('per_layer_gate', [size, hidden]);
    this.#push('per_layer_projection.weight', `${this.names.per_layer_out}.weight`, [hidden, size]);
    this.#push('per_layer_norm.weight', `${this.names.per_layer_out_norm}.weight`, [hidden]);
  }

  #addAttention(): void {
    const { hiddenSize: hidden, numHeads, qkNorm, hasOutputGate } = this.spec;
    const { qkvBias, outputBias, isQkvFused, isRopeInterleaved, interleavesAllLayers, hasEqualKeysAndValues } =
      this.features;
    const layer = this.spec.layers[this.layer];
    const { headDim = this.spec.headDim, numKvHeads = this.spec.numKvHeads } = layer;
    const hasKeys = layer.kvSource === undefined;
    const queries = numHeads * headDim;
    const keys = numKvHeads * headDim;
    const rope = this.spec.ropes[layer.rope] as NativeModelSpec['ropes'][number] | undefined;
    const numPaired = rope?.rotaryDim ?? (interleavesAllLayers === true ? headDim : 0);
    const pairs =
      isRopeInterleaved === true && numPaired > 0 ? { interleaved: { size: headDim, rows: numPaired } } : {};
    if (isQkvFused && isRopeInterleaved === true) {
      // The rows of values are in order, so each part is a tensor.
      const add = (name: string, numRows: number, first: number, order = {}) =>
        this.#named(
          name,
          [numRows, hidden],
          qkvBias,
          { rows: { count: queries + 2 * keys, first }, ...order },
          'qkv_proj',
        );
      add('q_proj', queries, 0, pairs);
      add('k_proj', keys, queries, pairs);
      add('v_proj', keys, queries + keys);
    } else if (isQkvFused) {
      this.#named('qkv_proj', [queries + 2 * keys, hidden], qkvBias);
    } else {
      this.#named('q_proj', [hasOutputGate ? 2 * queries : queries, hidden], qkvBias, pairs);
      if (hasKeys) {
        this.#named('k_proj', [keys, hidden], qkvBias, pairs);
        const values = hasEqualKeysAndValues && layer.window === 0 ? 'k_proj' : 'v_proj';
        this.#named('v_proj', [keys, hidden], qkvBias, {}, values);
      }
    }
    this.#named('o_proj', [hidden, queries], outputBias);
    if (qkNorm !== 'none') {
      this.#named('q_norm', [qkNorm === 'head' ? headDim : queries]);
      if (hasKeys) this.#named('k_norm', [qkNorm === 'head' ? headDim : keys]);
    }
    if (this.spec.hasSinks) this.#push('sinks', this.names.sinks, [numHeads]);
  }

  #addRecurrent({ numHeads, numGroups, headDim, stateSize, convTaps, convChannels }: NativeRecurrent): void {
    const { hiddenSize: hidden } = this.spec;
    const { recurrentBias, convBias } = this.features;
    const { mixer } = this.spec.layers[this.layer];
    const values = mixer === 'short_conv' ? convChannels : numHeads * headDim;
    const keys = numGroups * stateSize;
    this.#named('conv', [convChannels, convTaps], convBias, { storedShape: [convChannels, 1, convTaps] });
    this.#push('o_proj.weight', `${this.names.out_proj}.weight`, [hidden, values]);
    if (recurrentBias) this.#push('o_proj.bias', `${this.names.out_proj}.bias`, [hidden]);
    if (mixer === 'short_conv') {
      this.#named('in_proj', [3 * convChannels, hidden], recurrentBias);
      return;
    }
    this.#push('a_log', this.names.a_log, [numHeads]);
    this.#push('dt_bias', this.names.dt_bias, [numHeads]);
    this.#named('mixer_norm', [mixer === 'mamba2' ? values : headDim]);
    if (mixer === 'mamba2') {
      this.#push('skip', this.names.skip, [numHeads]);
      this.#named('in_proj', [2 * values + 2 * keys + numHeads, hidden], recurrentBias);
      return;
    }
    if (this.names.in_proj_qkvz === undefined) {
      this.#named('in_proj_qkv', [2 * keys + values, hidden]);
      this.#named('in_proj_z', [values, hidden]);
    } else {
      this.#named('in_proj_qkvz', [2 * keys + 2 * values, hidden]);
    }
    if (this.names.in_proj_ba === undefined) {
      this.#named('in_proj_b', [numHeads, hidden]);
      this.#named('in_proj_a', [numHeads, hidden]);
    } else {
      this.#named('in_proj_ba', [2 * numHeads, hidden]);
    }
  }

  #addMlp(): void {
    const { hiddenSize: hidden } = this.spec;
    const { intermediateSize: inner = this.spec.intermediateSize } = this.spec.layers[this.layer];
    const { mlpBias, isGateUpFused } = this.features;
    if (!this.spec.hasGatedMlp) {
      this.#named('up_proj', [inner, hidden], mlpBias);
    } else if (isGateUpFused) {
      this.#named('gate_up_proj', [2 * inner, hidden], mlpBias);
    } else {
      this.#named('gate_proj', [inner, hidden], mlpBias);
      this.#named('up_proj', [inner, hidden], mlpBias);
    }
    this.#named('down_proj', [hidden, inner], mlpBias);
    if (this.spec.hiddenAct === 'xielu') this.#addXielu();
  }

  #addXielu(): void {
    const add = (name: string, rest: Partial<RequiredTensor> = {}) =>
      this.#push(`xielu.${name}`, `mlp.act_fn.${name}`, [1], rest);
    add('alpha_p');
    add('alpha_n');
    add('beta', { storedShape: [] });
  }

  #addExperts(experts: ExpertTensors): void {
    const { hiddenSize: hidden } = this.spec;
    const moe = this.spec.moe!;
    this.#push('router.weight', `${experts.router}.weight`, [moe.numExperts, hidden]);
    if (experts.hasRouterBias) this.#push('router.bias', `${experts.router}.bias`, [moe.numExperts]);
    if (experts.selectionBias !== undefined)
      this.#push('router.selection_bias', experts.selectionBias, [moe.numExperts]);
    if (experts.scales !== undefined) this.#push('router.scales', experts.scales, [moe.numExperts]);
    if (moe.hasSeparateNorms) this.#addExpertNorms(experts.norms!);
    for (let expert = 0; expert < moe.numExperts; expert++) {
      if (experts.each !== undefined) this.#addEach(experts.each, expert, experts.eachIn);
      if (experts.stacked !== undefined) this.#addStacked(experts.stacked, expert);
    }
    if (moe.sharedIntermediateSize === 0) return;
    this.#addShared(experts.shared!, moe.sharedIntermediateSize);
    if (experts.sharedGate !== undefined) this.#push('shared_gate.weight', `${experts.sharedGate}.weight`, [1, hidden]);
  }

  #addExpertNorms({ router, experts, expertsOut, sharedOut }: NonNullable<ExpertTensors['norms']>): void {
    const add = (name: string, checkpointName: string) =>
      this.#push(`${name}.weight`, checkpointName, [this.spec.hiddenSize]);
    add('router_norm', router);
    add('expert_norm', experts);
    add('expert_out_norm', expertsOut);
    add('shared_out_norm', sharedOut);
  }

  #addEach(
    { gate, up, down, hasBias, isStacked }: NonNullable<ExpertTensors['each']>,
    expert: number,
    other: ExpertTensors['eachIn'],
  ): void {
    const { hiddenSize: hidden } = this.spec;
    const { numExperts: count, intermediateSize: inner } = this.spec.moe!;
    const rest = isStacked ? { stacked: { count, index: expert } } : {};
    const add = (name: string, checkpointName: string, shape: number[], or?: RequiredTensor['or']) => {
      const own = checkpointName.replace('*', String(expert));
      this.#push(`experts.${expert}.${name}.weight`, `${own}.weight`, shape, {
        ...rest,
        ...(or && { or: { ...or, checkpointName: this.#inLayer(or.checkpointName) } }),
      });
      if (hasBias) this.#push(`experts.${expert}.${name}.bias`, `${own}.bias`, [shape[0]], rest);
    };
    const half = (index: number) =>
      other && {
        checkpointName: other.gateUp,
        stacked: { count: 2 * count, index: 2 * expert + index },
        storedShape: [count, 2 * inner, hidden],
      };
    const whole = other && {
      checkpointName: other.down,
      stacked: { count, index: expert },
      storedShape: [count, hidden, inner],
    };
    add('gate_proj', gate, [inner, hidden], half(0));
    add('up_proj', up, [inner, hidden], half(1));
    add('down_proj', down, [hidden, inner], whole);
  }

  #addStacked(stacked: NonNullable<ExpertTensors['stacked']>, index: number): void {
    const { hiddenSize: hidden } = this.spec;
    const { numExperts: count, intermediateSize: inner } = this.spec.moe!;
    const pairs = stacked.isInterleaved ? { interleaved: { size: 2 * inner, rows: 2 * inner } } : {};
    const transposed = stacked.isTransposed ? { isTransposed: true } : {};
    const add = (name: string, checkpointName: string, shape: number[], rest: Partial<RequiredTensor>) =>
      this.#push(`experts.${index}.${name}`, checkpointName, shape, { stacked: { count, index }, ...rest });
    add('gate_up_proj.weight', stacked.gateUp, [2 * inner, hidden], { ...pairs, ...transposed });
    add('down_proj.weight', stacked.down, [hidden, inner], transposed);
    if (stacked.gateUpBias !== undefined) add('gate_up_proj.bias', stacked.gateUpBias, [2 * inner], pairs);
    if (stacked.downBias !== undefined) add('down_proj.bias', stacked.downBias, [hidden], {});
  }

  #addShared({ gate, up, gateUp, down }: NonNullable<ExpertTensors['shared']>, inner: number): void {
    const { hiddenSize: hidden } = this.spec;
    if (gateUp !== undefined) this.#push('shared_expert.gate_up_proj.weight', `${gateUp}.weight`, [2 * inner, hidden]);
    if (gate !== undefined) this.#push('shared_expert.gate_proj.weight', `${gate}.weight`, [inner, hidden]);
    if (up !== undefined) this.#push('shared_expert.up_proj.weight', `${up}.weight`, [inner, hidden]);
    this.#push('shared_expert.down_proj.weight', `${down}.weight`, [hidden, inner]);
  }
}
