import { CapstanError } from '../../ts';
import { FLAG_NAMES } from './flag-sources';

/** Library options whose flag has another name. */
const FLAGS: Readonly<Record<string, string>> = {
  kvCacheBytes: 'kv-cache-memory',
  grammarCacheBytes: 'grammar-cache-memory',
  prefixCache: 'enable-prefix-caching',
  prefixCacheDiskBytes: 'prefix-cache-disk-size',
  maxQueuedRequests: 'max-num-queued-reqs',
  maxQueuedTokens: 'max-num-queued-tokens',
  generationConfigOverrides: 'override-generation-config',
  toolCallFormat: 'tool-call-parser',
  reasoningFormat: 'reasoning-parser',
};

/** Returns the error with library options replaced by their flags: `maxModelLen` becomes `--max-model-len`. */
export function withFlagNames(error: unknown): unknown {
  if (!(error instanceof CapstanError)) return error;
  const { code, message, param } = error;
  return new CapstanError(code, message.replace(/^[a-z]+(?=:)|\b[a-z]+(?:[A-Z][a-z]+)+\b/g, toFlag), {
    param,
    cause: error,
  });
}

function toFlag(word: string): string {
  const flag = `--${Object.hasOwn(FLAGS, word) ? FLAGS[word] : word.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
  return FLAG_NAMES.has(flag) ? flag : word;
}
