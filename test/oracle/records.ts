/**
 * Writes the golden models as text for test/native/gpu/golden.cpp: the record that the addon would get, and the results
 * of transformers.
 *
 *     node -r ./test/oracle/register-ts.cjs test/oracle/records.ts OUT [DIR]
 *
 * Words are separated by whitespace, and lists start with their length. File paths are relative to the current folder.
 * Contains only what CUDA runs: models with 16-bit weights. Their decoder differs from that of Llama only in the norms
 * of q and k, windows, rotations, output gates, offsets of norms, and recurrent layers.
 */
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';

import type { NativeAddon, NativeLoad } from '../../ts/addon-types';
import { loadNative } from '../../ts/load';
import { PLAIN_DECODER } from '../../ts/model/config';
import { type GoldenCase, listCases, nativeTolerance } from './golden';

const list = (values: ArrayLike<number>): string => [values.length, ...Array.from(values)].join(' ');

const NO_RECURRENT = { numHeads: 0, numGroups: 0, headDim: 0, stateSize: 0, convTaps: 0, convChannels: 0 };

/** Returns the record that the library passes to the addon for a model. */
async function nativeRecord({ directory, golden }: GoldenCase): Promise<NativeLoad> {
  let record: NativeLoad | undefined;
  const addon = { load: (load: NativeLoad) => ((record = load), Promise.resolve({})) } as unknown as NativeAddon;
  await loadNative(
    () => addon,
    directory,
    golden.maxModelLen === undefined ? {} : { maxModelLen: golden.maxModelLen },
    () => undefined,
  );
  return record!;
}

function runsOnCuda(spec: NativeLoad['spec']): boolean {
  const { qkNorm, hasOutputGate: _, normOffset: __, ...plain } = PLAIN_DECODER;
  const isPlain = Object.entries(plain).every(([key, value]) =>
    isDeepStrictEqual(spec[key as keyof typeof plain], value),
  );
  const hasRopes = spec.ropes.every(({ type, queryScaleGrowth }) => type !== 'longrope' && queryScaleGrowth === 0);
  const isDense = spec.layers.every(({ isMoe }) => !isMoe);
  return isPlain && hasRopes && isDense && (spec.qkNorm === qkNorm || spec.qkNorm === 'head');
}

/** Returns undefined for a model that CUDA does not run. */
async function text(goldenCase: GoldenCase): Promise<string | undefined> {
  const { golden } = goldenCase;
  const { files, tensors, spec, options } = await nativeRecord(goldenCase);
  const isInOrder = tensors.every(({ interleavedHeadDim }) => interleavedHeadDim === undefined);
  if (!isInOrder || !runsOnCuda(spec)) return undefined;
  const recurrent = spec.recurrent ?? NO_RECURRENT;
  const tolerance = nativeTolerance(golden);
  const scored = golden.prompts.findIndex((prompt) => prompt.name === golden.promptLogprobs.prompt);
  return [
    `model ${golden.case} ${golden.dtype} ${options.maxModelLen} ${tolerance.worst} ${tolerance.mean}`,
    `files ${files.length}`,
    ...files.map((file) => path.relative('.', file)),
    `tensors ${tensors.length}`,
    ...tensors.map(({ name, file, offset, dtype, shape }) => `${name} ${file} ${offset} ${dtype} ${list(shape)}`),
    `spec ${spec.vocabSize} ${spec.hiddenSize} ${spec.intermediateSize} ${spec.layers.length} ${spec.numHeads} ${spec.numKvHeads} ${spec.headDim} ${spec.rmsNormEps} ${spec.hiddenAct}` +
      ` ${Number(spec.tieWordEmbeddings)} ${spec.attentionScale} ${spec.maxPositionEmbeddings} ${spec.qkNorm}` +
      ` ${Number(spec.hasOutputGate)} ${spec.normOffset}`,
    `layers ${spec.layers.map(({ mixer, window, rope }) => `${mixer} ${window} ${rope}`).join(' ')}`,
    `recurrent ${recurrent.numHeads} ${recurrent.numGroups} ${recurrent.headDim} ${recurrent.stateSize} ${recurrent.convTaps} ${recurrent.convChannels}`,
    `ropes ${spec.ropes.length}`,
    ...spec.ropes.map(
      (rope) =>
        `${rope.type} ${rope.theta} ${rope.rotaryDim} ${rope.factor} ${rope.originalMaxPositions} ${rope.lowFreqFactor} ${rope.highFreqFactor} ${rope.betaFast} ${rope.betaSlow}` +
        ` ${Number(rope.truncate)} ${rope.attentionFactor}`,
    ),
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
  ].join('\n');
}

async function main([out, directory = path.join(__dirname, 'fixtures')]: string[]): Promise<void> {
  const cases = listCases(directory).filter(({ golden }) => golden.dtype !== 'f32');
  const texts: string[] = [];
  for (const goldenCase of cases) {
    const model = await text(goldenCase);
    if (model !== undefined) texts.push(model);
  }
  writeFileSync(out, `${texts.join('\n')}\n`);
  console.log(`${texts.length} models in ${out}`);
}

main(process.argv.slice(2)).catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});
