import type { NativeModelSpec, NativePooling } from '../addon-types';
import { CapstanError } from '../errors';
import type { ModelTask } from '../pooling';
import type { Family, HeadLayer } from './family';
import type { JsonReader } from './json-file';
import type { SentenceTransformers } from './sentence-transformers';

/** What an engine of the task `embed` or `score` does with a model. */
export interface PoolingPlan {
  task: 'embed' | 'score';
  kind: NativePooling['kind'];
  /** Layers whose tensors are not those of the language model. */
  head: HeadLayer[];
  /** How the result becomes a score. `yes_no`: of the logits of two tokens. */
  activation: 'identity' | 'sigmoid' | 'yes_no';
  /** The tokens of `yes_no`, if the model's files name them. */
  scoreTokens: { yes: number; no: number } | undefined;
  /** Whether embeddings have length 1, as the model's files say. */
  normalizes: boolean;
  prompts: Readonly<Record<string, string>>;
  defaultPromptName: string | undefined;
  maxLength: number | undefined;
}

const NO_FILES: SentenceTransformers = {
  modules: undefined,
  prompts: {},
  defaultPromptName: undefined,
  scoreActivation: undefined,
  maxLength: undefined,
};

/**
 * Returns undefined for the task `generate`.
 * @throws CapstanError `invalid_argument` for a task that the model does not have.
 */
export function planPooling(
  requested: 'auto' | ModelTask,
  config: JsonReader,
  family: Family,
  { hiddenSize }: NativeModelSpec,
  files: SentenceTransformers = NO_FILES,
): PoolingPlan | undefined {
  const { modules } = files;
  const task = resolveTask(requested, family, modules);
  if (task === 'generate') return undefined;
  const { pooling } = family;
  const isClassifier = task === 'score' && pooling !== undefined && !pooling.isYesNo;
  return {
    task,
    kind: (task === 'embed' ? modules?.kind : undefined) ?? pooling?.kind(config) ?? 'last',
    head: [...(pooling?.head(config, hiddenSize) ?? []), ...(task === 'embed' ? (modules?.dense ?? []) : [])],
    activation: isClassifier ? readScoreActivation(config, files.scoreActivation) : 'yes_no',
    scoreTokens: modules?.scoreTokens,
    normalizes: modules?.normalizes ?? true,
    prompts: files.prompts,
    defaultPromptName: files.defaultPromptName,
    maxLength: files.maxLength,
  };
}

/** The tasks that a model can have, the one of its files first. */
function tasksOf({ pooling, modelType }: Family, modules: SentenceTransformers['modules']): readonly ModelTask[] {
  // The prompt of this reranker belongs to one family.
  const isReranker = pooling === undefined && modelType === 'qwen3';
  if (modules?.scoreTokens !== undefined && !isReranker)
    throw CapstanError.unexpected(
      'unsupported_model',
      'modules.json: LogitScore',
      'a model of the type qwen3',
      `the type ${modelType}`,
    );
  if (pooling !== undefined) return [pooling.task];
  const all: ModelTask[] = isReranker ? ['generate', 'embed', 'score'] : ['generate', 'embed'];
  if (modules === undefined) return all;
  const first = modules.scoreTokens === undefined ? 'embed' : 'score';
  return [...all.filter((task) => task === first), ...all.filter((task) => task !== first)];
}

function resolveTask(
  requested: 'auto' | ModelTask,
  family: Family,
  modules: SentenceTransformers['modules'],
): ModelTask {
  const tasks = tasksOf(family, modules);
  const task = requested === 'auto' ? tasks[0] : tasks.find((own) => own === requested);
  if (task === undefined)
    throw CapstanError.argument('task', `auto, ${tasks.join(' or ')} for ${family.architecture}`, requested);
  return task;
}

/** Returns the spec of a model that pools. It needs no LM head, except for the rows of the score tokens. */
export function pooledSpec(spec: NativeModelSpec, plan: PoolingPlan): NativeModelSpec {
  const isYesNo = plan.task === 'score' && plan.activation === 'yes_no';
  return {
    ...spec,
    tieWordEmbeddings: spec.tieWordEmbeddings || !isYesNo,
    defaultLength: Math.min(plan.maxLength ?? 0, spec.maxPositionEmbeddings),
    pooling: {
      kind: plan.kind,
      head: plan.head.map(({ outputSize, activation, tensors }) => ({
        outputSize,
        activation,
        hasNorm: tensors.norm !== undefined,
      })),
    },
  };
}

/** Adds the layer that gives the logits of both answers. */
export function withScoreTokens(spec: NativeModelSpec, { yes, no }: { yes: number; no: number }): NativeModelSpec {
  const { kind } = spec.pooling!;
  const head = [{ outputSize: 2, activation: 'identity' as const, hasNorm: false, tokenIds: Int32Array.of(yes, no) }];
  return { ...spec, pooling: { kind, head } };
}

/** As sentence-transformers and vLLM read it: by default a sigmoid, because there is one label. */
function readScoreActivation(config: JsonReader, stated: string | undefined): PoolingPlan['activation'] {
  const own = config.object('sentence_transformers');
  const [reader, key] = own?.has('activation_fn')
    ? [own, 'activation_fn']
    : [config, 'sbert_ce_default_activation_function'];
  if (stated === undefined && reader.raw(key) === undefined) return 'sigmoid';
  const name = stated ?? reader.string(key);
  const activation = name.split('.').at(-1)!.toLowerCase();
  if (activation !== 'sigmoid' && activation !== 'identity')
    throw CapstanError.mismatch(
      'unsupported_model',
      `${stated === undefined ? 'config.json' : 'config_sentence_transformers.json'}: activation function of the score`,
      'Sigmoid or Identity',
      name,
    );
  return activation;
}
