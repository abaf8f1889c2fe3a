import type { NativePooling } from '../../addon-types';
import type { Family, FamilyPooling, HeadLayer } from '../family';
import type { JsonReader } from '../json-file';
import type { PoolingModules, SentenceTransformers } from '../sentence-transformers';
import { invalidFile, unsupportedFile } from '../weight-file';
import type { GgufFiles } from './files';
import { unsupported } from './unsupported';

type Tensors = GgufFiles['tensors'];

/** Values of `pooling_type`. */
const KINDS: readonly (NativePooling['kind'] | 'none' | 'rank')[] = ['none', 'mean', 'first', 'last', 'rank'];

/** Layers after the pooling of an embedding, in order. */
const DENSE = ['dense_2', 'dense_3'];
/** The layers of a classifier. */
const CLASSIFIER = 'cls';
const CLASSIFIER_NORM = 'cls.norm';
const CLASSIFIER_OUT = 'cls.output';

/** What a file says about pooling, in the form of the files of sentence-transformers. */
export interface GgufPooling {
  /** The family with the classifier of the file, if it has one. */
  family: Family;
  files: SentenceTransformers;
}

/**
 * @param family The family of the file's architecture.
 * @throws CapstanError `invalid_model` or `unsupported_model` that names the file and the key or tensor.
 */
export function readGgufPooling(
  metadata: JsonReader,
  family: Family,
  { tensors }: Pick<GgufFiles, 'tensors'>,
): GgufPooling {
  const arch = metadata.string('general.architecture');
  const kind = readKind(metadata, `${arch}.pooling_type`);
  const isRanking = kind === 'rank' || tensors.has(`${CLASSIFIER_OUT}.weight`);
  const dense = DENSE.filter((name) => tensors.has(`${name}.weight`)).map((name) => denseLayer(tensors, name));
  const isStated = kind !== undefined && kind !== 'none' && kind !== 'rank';
  const modules: PoolingModules | undefined =
    (isStated || dense.length > 0) && !isRanking
      ? { kind: isStated ? kind : undefined, dense, normalizes: true, scoreTokens: undefined }
      : undefined;
  return {
    family: isRanking ? { ...family, pooling: readClassifier(metadata, arch, family, tensors) } : family,
    files: { modules, prompts: {}, defaultPromptName: undefined, scoreActivation: undefined, maxLength: undefined },
  };
}

function readKind(metadata: JsonReader, key: string): (typeof KINDS)[number] | undefined {
  const stated = metadata.raw(key);
  // -1 stands for "not stated".
  if (stated === undefined || stated === -1) return undefined;
  const kind = KINDS[metadata.nonNegativeInt(key)] as (typeof KINDS)[number] | undefined;
  if (kind === undefined) throw unsupported(metadata, key, `a number up to ${KINDS.length - 1}`, stated);
  return kind;
}

function denseLayer(tensors: Tensors, name: string): HeadLayer {
  const outputSize = tensors.get(`${name}.weight`)!.shape[0];
  return { outputSize, activation: 'identity', tensors: { name, hasBias: tensors.has(`${name}.bias`) } };
}

/** The layers of a reranker. Those of Qwen3-Reranker are two rows of its LM head. */
function readClassifier(metadata: JsonReader, arch: string, family: Family, tensors: Tensors): FamilyPooling {
  const out = tensors.get(`${CLASSIFIER_OUT}.weight`);
  if (out === undefined)
    throw invalidFile(
      `${CLASSIFIER_OUT}.weight`,
      'the classifier of a reranker (pooling_type 4) in the file',
      'no tensor',
    );
  const isYesNo = family.modelType === 'qwen3';
  const numLabels = isYesNo ? 2 : 1;
  if (out.shape[0] !== numLabels)
    throw unsupportedFile(
      `${CLASSIFIER_OUT}.weight`,
      isYesNo ? 'two rows, for yes and no' : 'a reranker, which has one label, because other classifiers give no score',
      `${out.shape[0]} rows`,
    );
  const dense = isYesNo ? [] : [readDense(arch, tensors)];
  return {
    task: 'score',
    kind: () => (isYesNo ? 'last' : readClassifierKind(metadata, arch)),
    head: () => [...dense, denseLayer(tensors, CLASSIFIER_OUT)],
    ...(isYesNo ? { isYesNo } : {}),
  };
}

function readDense(arch: string, tensors: Tensors): HeadLayer {
  if (!tensors.has(`${CLASSIFIER}.weight`))
    throw unsupportedFile(
      `${CLASSIFIER}.weight`,
      'the layer before the classifier',
      arch === 'bert'
        ? `none, because llama.cpp's converter leaves out the pooler of BERT. Use the model directory`
        : `none. Rerankers of GGUF files run as ModernBERT and Qwen3-Reranker, this one is of ${arch}`,
    );
  const layer = denseLayer(tensors, CLASSIFIER);
  const hasNorm = tensors.has(`${CLASSIFIER_NORM}.weight`);
  return {
    ...layer,
    activation: arch === 'modern-bert' ? 'gelu' : 'tanh',
    tensors: {
      ...layer.tensors,
      ...(hasNorm ? { norm: { name: CLASSIFIER_NORM, hasBias: tensors.has(`${CLASSIFIER_NORM}.bias`) } } : {}),
    },
  };
}

/** What the classifier reads. By default the first token, but of ModernBERT the mean, as in llama.cpp. */
function readClassifierKind(metadata: JsonReader, arch: string): NativePooling['kind'] {
  const key = `${arch}.classifier.pooling_type`;
  const kind = readKind(metadata, key) ?? (arch === 'modern-bert' ? 'mean' : 'first');
  if (kind === 'none' || kind === 'rank') throw unsupported(metadata, key, '1, 2 or 3', metadata.raw(key));
  return kind;
}
