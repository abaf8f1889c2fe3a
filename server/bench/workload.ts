import { readFileSync } from 'node:fs';
import { UsageError } from '../base/usage-error';
import type { ServeBenchOptions } from './options';
import type { Random } from './random';

/** One request, independent of the route. */
export interface Prompt {
  /** Token ids, or text if the backend does not accept ids. */
  prompt: number[] | string;
  /** The intended number of prompt tokens. The usage in the response overrides it. */
  numTokens: number;
  maxTokens: number;
}

/** Smaller ids are special tokens in many vocabularies. */
const FIRST_ID = 10;

/** Each word is about one token in current vocabularies. */
const WORDS = (
  'the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not what all were we when your can said there use an each which she do how their if ' +
  'will up other about out many then them these so some her would make like him into time has look two more write go see number no way could people my than first water been call who its now find long down day did get come made may part'
).split(' ');

/** Returns all prompts. The same seed gives the same prompts. */
export function makeWorkload(options: ServeBenchOptions, vocabSize: number, random: Random): Prompt[] {
  if (options.dataset === 'custom') return readPrompts(options);
  const isText = options.backend === 'openai-chat';
  const randomTokens = (length: number) =>
    isText
      ? Array.from({ length }, () => WORDS[random.integer(0, WORDS.length - 1)])
      : Array.from({ length }, () => random.integer(FIRST_ID, vocabSize - 1));
  const join = (...pieces: (string | number)[][]) => (isText ? pieces.flat().join(' ') : (pieces.flat() as number[]));
  const vary = (length: number) =>
    random.integer(
      Math.max(1, Math.floor(length * (1 - options.rangeRatio))),
      Math.ceil(length * (1 + options.rangeRatio)),
    );
  if (options.dataset === 'prefix_repetition') {
    const { length, suffixLen, count } = options.prefixes;
    const prefixes = Array.from({ length: count }, () => randomTokens(length));
    return Array.from({ length: options.numPrompts }, (_, i) => {
      const suffix = randomTokens(vary(suffixLen));
      return {
        prompt: join(prefixes[i % count], suffix),
        numTokens: length + suffix.length,
        maxTokens: vary(options.outputLen),
      };
    });
  }
  const prefix = randomTokens(options.prefixLen);
  return Array.from({ length: options.numPrompts }, () => {
    const own = randomTokens(vary(options.inputLen));
    return { prompt: join(prefix, own), numTokens: prefix.length + own.length, maxTokens: vary(options.outputLen) };
  });
}

/** Reads JSON lines with `prompt` and an optional `output_tokens`. Repeats them until there are enough prompts. */
function readPrompts({ datasetPath, numPrompts, outputLen }: ServeBenchOptions): Prompt[] {
  const lines = readLines(datasetPath!);
  const prompts = lines.map((line, i): Prompt => {
    const { prompt, output_tokens: maxTokens = outputLen } = parseLine(line, `${datasetPath}:${i + 1}`);
    if (typeof prompt !== 'string' || prompt === '')
      throw new UsageError(`${datasetPath}:${i + 1}: expected a string "prompt", got ${typeof prompt}`);
    if (!Number.isSafeInteger(maxTokens) || (maxTokens as number) < 1)
      throw new UsageError(`${datasetPath}:${i + 1}: expected "output_tokens" of 1 or more`);
    return { prompt, numTokens: 0, maxTokens: maxTokens as number };
  });
  if (prompts.length === 0) throw new UsageError(`${datasetPath}: expected JSON lines, got an empty file`);
  return Array.from({ length: numPrompts }, (_, i) => prompts[i % prompts.length]);
}

function readLines(path: string): string[] {
  try {
    return readFileSync(path, 'utf8')
      .split('\n')
      .filter((line) => line.trim() !== '');
  } catch (error) {
    throw new UsageError(`--dataset-path: ${(error as Error).message}`);
  }
}

function parseLine(line: string, place: string): Record<string, unknown> {
  try {
    return Object(JSON.parse(line)) as Record<string, unknown>;
  } catch {
    throw new UsageError(`${place}: expected a JSON object`);
  }
}
