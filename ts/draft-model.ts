import type { NativeDraftModel } from './addon-types';
import { CapstanError } from './errors';
import { type Model, readModel } from './model/model';
import type { DraftChoice } from './speculation';
import type { Vocabulary } from './text/vocabulary';

/** A draft model without the type of its weights, which depends on the device. */
export type DraftModel = Omit<NativeDraftModel, 'weightDtype'> & Pick<Model['checkpoint'], 'dtype'>;

/** A requested draft model whose files are on this machine. */
export interface LocatedDraft extends DraftChoice {
  /** A folder, a GGUF file or `demo`. */
  path: string;
}

/**
 * Reads a draft model.
 * @throws CapstanError as `readModel`, or `invalid_argument` for a model that cannot draft for `target`.
 */
export async function readDraftModel(
  { path, quantization }: LocatedDraft,
  target: Pick<Model, 'config' | 'text'>,
): Promise<DraftModel> {
  const { config, checkpoint, text } = await readModel(path);
  await text.close();
  const { spec, family } = config;
  if (config.pooling !== undefined || !spec.isCausal) throw refused('a model that generates text', family.architecture);
  if (spec.recurrent !== undefined) throw refused('a model without recurrent layers', family.architecture);
  checkVocabulary(vocabularyOf(target), vocabularyOf({ config, text }));
  return { files: checkpoint.files, tensors: checkpoint.tensors, spec, dtype: checkpoint.dtype, quantization };
}

/** The tokens that a model can read and draw. */
interface Tokens extends Pick<Vocabulary, 'bytes' | 'offsets'> {
  count: number;
}

function vocabularyOf({ config, text }: Pick<Model, 'config' | 'text'>): Tokens {
  const { bytes, offsets, numTokens } = text.traits.vocabulary;
  return { bytes, offsets, count: Math.min(numTokens, config.spec.vocabSize) };
}

/** Ids mean the same in both models, because drafts are ids. */
function checkVocabulary(wanted: Tokens, given: Tokens): void {
  const bytesOf = ({ bytes, offsets }: Tokens, id: number): Buffer =>
    Buffer.from(bytes.buffer, bytes.byteOffset + offsets[id], offsets[id + 1] - offsets[id]);
  if (given.count !== wanted.count)
    throw refused(`the vocabulary of the model, ${wanted.count} tokens`, `one of ${given.count} tokens`);
  for (let id = 0; id < wanted.count; id++) {
    const [before, after] = [bytesOf(wanted, id), bytesOf(given, id)];
    if (before.equals(after)) continue;
    const show = (token: Buffer): string => JSON.stringify(token.toString());
    throw refused(`the vocabulary of the model, in which token ${id} is ${show(before)}`, show(after));
  }
}

function refused(expected: string, received: string): CapstanError {
  return CapstanError.unexpected('invalid_argument', 'speculative.model', expected, received);
}
