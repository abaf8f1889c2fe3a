/**
 * Writes the golden models as text for test/native/gpu/golden.cpp: the record that the addon would get, and the results
 * of transformers.
 *
 *     node -r ./test/oracle/register-ts.cjs test/oracle/records.ts OUT [DIR]
 *
 * Words are separated by whitespace, and lists start with their length. File paths are relative to the current folder.
 * Contains only what CUDA runs, with 16-bit weights. Families whose golden models are all in f32 run in f16.
 */
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';

import type { NativeAddon, NativeLoad, NativeMoe } from '../../ts/addon-types';
import { loadNative } from '../../ts/load';
import { PLAIN_DECODER } from '../../ts/model/config';
import type { Model } from '../../ts/model/model';
import type { EngineOptions } from '../../ts/options';
import { RERANKER_PROMPT, rerankerBody } from '../../ts/text/reranker-prompt';
import type { EncodedInput } from '../../ts/text/truncate-input';
import { type EmbeddingGolden, listPoolingCases, type PoolingCase, type ScoreGolden } from './embedding-golden';
import { type Golden, type GoldenCase, listCases, nativeTolerance } from './golden';

const list = (values: ArrayLike<number>): string => [values.length, ...Array.from(values)].join(' ');

const NO_MOE: NativeMoe = {
  numExperts: 0,
  topK: 0,
  intermediateSize: 0,
  sharedIntermediateSize: 0,
  score: 'softmax',
  normalizesWeights: false,
  weightScale: 1,
  logitScale: 1,
  hasSeparateNorms: false,
};
const NO_EMBEDDING = { numPositions: 0, positionOffset: 0, numTokenTypes: 0, hasNorm: false, numDistances: 0 };
const NO_RECURRENT = { numHeads: 0, numGroups: 0, headDim: 0, stateSize: 0, convTaps: 0, convChannels: 0 };

/** Returns the record that the library passes to the addon for a model. */
async function nativeRecord(directory: string, options: EngineOptions): Promise<{ load: NativeLoad; model: Model }> {
  let record: NativeLoad | undefined;
  const addon = { load: (load: NativeLoad) => ((record = load), Promise.resolve({})) } as unknown as NativeAddon;
  const { model } = await loadNative(
    () => addon,
    directory,
    options,
    () => undefined,
  );
  return { load: record!, model };
}

/** What a model must have of the plain decoder to run on CUDA, as `unsupported_feature` of the backend says. */
const PLAIN = ['defaultLength', 'hasMtp'] as const;

function runsOnCuda(spec: NativeLoad['spec']): boolean {
  const isPlain = PLAIN.every((key) => isDeepStrictEqual(spec[key], PLAIN_DECODER[key]));
  const hasRopes = spec.ropes.every(({ type }) => type !== 'longrope');
  return isPlain && hasRopes;
}

/** Returns undefined for a model that CUDA does not run. */
async function text(goldenCase: GoldenCase): Promise<string | undefined> {
  const golden: Golden = { ...goldenCase.golden };
  if (golden.dtype === 'f32') golden.dtype = 'f16';
  const { maxModelLen } = golden;
  const { load } = await nativeRecord(goldenCase.directory, maxModelLen === undefined ? {} : { maxModelLen });
  if (!runsOnCuda(load.spec)) return undefined;
  const { worst, mean } = nativeTolerance(golden);
  // The weights of models in f32 are rounded, too.
  const worstInF16 = golden.dtype === goldenCase.golden.dtype ? worst : 2 * worst;
  const scored = golden.prompts.findIndex((prompt) => prompt.name === golden.promptLogprobs.prompt);
  return [
    `model ${golden.case} ${golden.dtype} ${load.options.maxModelLen} ${worstInF16} ${mean}`,
    requestText(load),
    `prompts ${golden.prompts.length}`,
    ...golden.prompts.map((prompt) =>
      [
        list(prompt.promptTokenIds),
        list(prompt.greedyTokenIds),
        list(prompt.margins),
        ...prompt.topLogprobs.map((top) => list(top.flat())),
      ].join('\n'),
    ),
    `scored ${scored} ${list(golden.promptLogprobs.logprobs.slice(1) as number[])}`,
    'pooled text 0',
  ].join('\n');
}

/** The results of a model that pools: the ids and the types of tokens of each input, and the embedding or the score. */
async function pooledText({ directory, golden, name }: PoolingCase): Promise<string> {
  const { load, model } = await nativeRecord(directory, { task: golden.task });
  const inputs = await encode(model, golden);
  const results = golden.task === 'embed' ? golden.embeddings : golden.scores.map((score) => [score]);
  const hasTypes = (load.spec.embedding?.numTokenTypes ?? 0) > 1;
  return [
    `model ${name} ${golden.dtype === 'f32' ? 'f16' : golden.dtype} ${load.options.maxModelLen} 0 0`,
    requestText(load),
    'prompts 0',
    'scored -1 0',
    `pooled ${golden.task === 'embed' ? 'embed' : model.config.pooling!.activation} ${inputs.length}`,
    ...inputs.map(({ ids, typeIds }, i) => `${list(ids)}\n${list(hasTypes ? typeIds : [])}\n${list(results[i])}`),
  ].join('\n');
}

/** Returns the inputs of a golden as `Pooler` encodes them. */
async function encode({ config, text }: Model, golden: EmbeddingGolden | ScoreGolden): Promise<EncodedInput[]> {
  const { activation, prompts, defaultPromptName } = config.pooling!;
  const prompt = defaultPromptName === undefined ? undefined : prompts[defaultPromptName];
  const options = { maxTokens: Infinity, addSpecialTokens: true };
  if (golden.task === 'embed')
    return text.encodeInputs(
      golden.texts.map((one) => (prompt ?? '') + one),
      options,
    );
  const { query, documents } = golden;
  if (activation !== 'yes_no')
    return text.encodeInputs(
      documents.map((document) => [query, document] as const),
      options,
    );
  const [before, after] = await text.encodeTexts([RERANKER_PROMPT.before, RERANKER_PROMPT.after]);
  const bodies = documents.map((document) => rerankerBody(query, document, prompt));
  const encoded = await text.encodeInputs(bodies, { ...options, addSpecialTokens: false });
  return encoded.map(({ ids }) => {
    const all = Int32Array.from([...before, ...ids, ...after]);
    return { ids: all, typeIds: new Int32Array(all.length) };
  });
}

function requestText({ files, tensors, spec }: NativeLoad): string {
  const recurrent = spec.recurrent ?? NO_RECURRENT;
  const moe = spec.moe ?? NO_MOE;
  const embedding = spec.embedding ?? NO_EMBEDDING;
  const head = spec.pooling?.head ?? [];
  return [
    `files ${files.length}`,
    ...files.map((file) => path.relative('.', file)),
    `tensors ${tensors.length}`,
    ...tensors.map(
      ({ name, file, offset, dtype, shape, interleavedHeadDim = 0, interleavedRows = 0, isTransposed = false }) =>
        `${name} ${file} ${offset} ${dtype} ${list(shape)} ${interleavedHeadDim} ${interleavedRows} ${Number(isTransposed)}`,
    ),
    `spec ${spec.vocabSize} ${spec.hiddenSize} ${spec.intermediateSize} ${spec.layers.length} ${spec.numHeads} ${spec.numKvHeads} ${spec.headDim} ${spec.rmsNormEps} ${spec.hiddenAct}` +
      ` ${Number(spec.tieWordEmbeddings)} ${spec.attentionScale} ${spec.maxPositionEmbeddings} ${spec.qkNorm}` +
      ` ${Number(spec.hasOutputGate)} ${spec.normOffset}`,
    `norms ${['input', 'attentionOut', 'mlp', 'mlpOut'].map((norm) => Number(spec.norms[norm as 'input'])).join(' ')} ${spec.normKind}` +
      ` ${Number(spec.isParallel)} ${Number(spec.hasGatedMlp)} ${Number(spec.rotatesBeforeQkNorm)} ${Number(spec.hasVNorm)}`,
    `scales ${spec.embeddingScale} ${spec.residualScale} ${spec.logitScale} ${spec.logitSoftCap} ${spec.attentionSoftCap} ${Number(spec.hasSinks)}`,
    `per_layer ${spec.perLayerInputSize} ${Number(spec.hasLayerScales)}`,
    `moe ${moe.numExperts} ${moe.topK} ${moe.numGroups ?? 1} ${moe.topGroups ?? 1} ${moe.intermediateSize} ${moe.sharedIntermediateSize} ${moe.score}` +
      ` ${Number(moe.normalizesWeights)} ${moe.weightScale} ${moe.logitScale} ${Number(moe.hasSeparateNorms)}`,
    `layers ${spec.layers.map(({ mixer, window, rope, isMoe, lacksInputNorm = false, headDim = 0, numKvHeads = 0, intermediateSize = 0, kvSource = -1 }) => `${mixer} ${window} ${rope} ${Number(isMoe)} ${Number(lacksInputNorm)} ${headDim} ${numKvHeads} ${intermediateSize} ${kvSource}`).join(' ')}`,
    `recurrent ${recurrent.numHeads} ${recurrent.numGroups} ${recurrent.headDim} ${recurrent.stateSize} ${recurrent.convTaps} ${recurrent.convChannels}`,
    `ropes ${spec.ropes.length}`,
    ...spec.ropes.map(
      (rope) =>
        `${rope.type} ${rope.theta} ${rope.rotaryDim} ${rope.factor} ${rope.originalMaxPositions} ${rope.lowFreqFactor} ${rope.highFreqFactor} ${rope.betaFast} ${rope.betaSlow}` +
        ` ${Number(rope.truncate)} ${rope.attentionFactor} ${rope.queryScaleGrowth} ${list(rope.frequencyDivisors ?? [])}`,
    ),
    `encoder ${Number(spec.isCausal)} ${Number(spec.hasFinalNorm)} ${Number(spec.norms.isOfSum ?? false)}` +
      ` ${embedding.numPositions} ${embedding.positionOffset} ${embedding.numTokenTypes}` +
      ` ${Number(embedding.hasNorm)} ${embedding.numDistances}`,
    `head ${spec.pooling?.kind ?? 'none'} ${head.length}`,
    ...head.map(
      ({ outputSize, activation, hasNorm, tokenIds = [] }) =>
        `${outputSize} ${activation} ${Number(hasNorm)} ${list(tokenIds)}`,
    ),
  ].join('\n');
}

async function main([out, directory = path.join(__dirname, 'fixtures')]: string[]): Promise<void> {
  const all = listCases(directory);
  const inSixteenBits = new Set(all.flatMap(({ golden }) => (golden.dtype === 'f32' ? [] : [golden.family])));
  const cases = all.filter(({ golden }) => golden.dtype !== 'f32' || !inSixteenBits.has(golden.family));
  const texts: string[] = [];
  for (const goldenCase of cases) {
    const model = await text(goldenCase);
    if (model !== undefined) texts.push(model);
  }
  for (const poolingCase of listPoolingCases(path.join(directory, 'embeddings')))
    texts.push(await pooledText(poolingCase));
  writeFileSync(out, `${texts.join('\n')}\n`);
  console.log(`${texts.length} models in ${out}`);
}

main(process.argv.slice(2)).catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});
