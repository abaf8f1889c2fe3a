import { basename, resolve } from 'node:path';
import type { NativeAddon, NativeEngine } from './addon-types';
import { checkObject, checkString } from './checks';
import { CapstanError } from './errors';
import type { ModelConfig } from './model/config';
import { readAdapter } from './model/lora/adapter';
import type { TextTest } from './model/lora/patterns';

/** A loaded LoRA adapter. */
export interface AdapterInfo {
  /** The name that calls choose it by. */
  name: string;
  /** Its folder. */
  path: string;
  /** The largest rank of its updates. */
  rank: number;
  /** Number of weights of all its updates. */
  numParameters: number;
  /** Open calls that use it. A call of the engine has one prompt, so these are also its open prompts. */
  numCalls: number;
}

interface LoadedAdapter extends AdapterInfo {
  id: number;
}

/** Limit of a name's length, because names are part of responses, logs and metrics. */
const MAX_NAME_LENGTH = 256;

/** The adapters of one engine, by name. */
export class Adapters {
  readonly #native: Pick<NativeEngine, 'loadAdapter' | 'unloadAdapter'>;
  readonly #addon: Pick<NativeAddon, 'compileGrammar'>;
  readonly #model: ModelConfig;
  readonly #isEnabled: boolean;
  readonly #loaded = new Map<string, LoadedAdapter>();
  readonly #loading = new Set<string>();

  constructor(
    native: Pick<NativeEngine, 'loadAdapter' | 'unloadAdapter'>,
    addon: Pick<NativeAddon, 'compileGrammar'>,
    model: ModelConfig,
    isEnabled: boolean,
  ) {
    this.#native = native;
    this.#addon = addon;
    this.#model = model;
    this.#isEnabled = isEnabled;
  }

  get list(): AdapterInfo[] {
    return [...this.#loaded.values()].map(({ id: _id, ...info }) => info);
  }

  async load(name: string, path: string): Promise<AdapterInfo> {
    checkAdapterName('name', name);
    const dir = resolve(checkString('path', path));
    if (!this.#isEnabled)
      throw new CapstanError('invalid_argument', 'enableLora: expected true to load an adapter, got false', {
        param: 'enableLora',
      });
    if (this.#loaded.has(name) || this.#loading.has(name))
      throw CapstanError.unexpected(
        'invalid_argument',
        'name',
        'the name of an adapter that is not loaded',
        `${JSON.stringify(name)}, which is loaded: unload it first`,
      );
    this.#loading.add(name);
    try {
      const { source, rank, numParameters } = await readAdapter(dir, this.#model, (pattern) => this.#compile(pattern));
      const id = await this.#native.loadAdapter(source);
      const adapter = { id, name, path: dir, rank, numParameters, numCalls: 0 };
      this.#loaded.set(name, adapter);
      const { id: _id, ...info } = adapter;
      return info;
    } catch (error) {
      throw named(name, dir, CapstanError.from(error));
    } finally {
      this.#loading.delete(name);
    }
  }

  unload(name: string): void {
    const adapter = this.#find('name', name);
    this.#loaded.delete(name);
    this.#native.unloadAdapter(adapter.id);
  }

  /** Returns the id for a request and a function to call when the request has ended. */
  use(name: string | undefined): { adapterId: number; release?: () => void } {
    if (name === undefined) return { adapterId: 0 };
    const adapter = this.#find('adapter', name);
    adapter.numCalls++;
    return { adapterId: adapter.id, release: () => adapter.numCalls-- };
  }

  #find(param: string, name: string): LoadedAdapter {
    const adapter = this.#loaded.get(checkString(param, name));
    if (adapter !== undefined) return adapter;
    throw CapstanError.argument(param, 'the name of a loaded adapter', name);
  }

  async #compile(pattern: string): Promise<TextTest> {
    const grammar = await this.#addon.compileGrammar({ kind: 'regex', pattern });
    return (text) => {
      const matcher = grammar.matcher();
      return matcher.accept(Buffer.from(text)) && matcher.canEnd();
    };
  }
}

/** The error of a file names the adapter, because a server may load several. */
function named(name: string, dir: string, error: CapstanError): CapstanError {
  const { code, message, param, expected, received } = error;
  return new CapstanError(code, `adapter ${JSON.stringify(name)} (${basename(dir)}): ${message}`, {
    ...(param === undefined ? {} : { param }),
    ...(expected === undefined ? {} : { expected }),
    ...(received === undefined ? {} : { received }),
    cause: error,
  });
}

function checkAdapterName(param: string, name: unknown): string {
  const isValid = typeof name === 'string' && name !== '' && name.length <= MAX_NAME_LENGTH && !/\p{Cc}/u.test(name);
  if (!isValid)
    throw CapstanError.argument(param, `a name of 1 to ${MAX_NAME_LENGTH} characters without control characters`, name);
  return name;
}

/** Checks the option `loraModules`: folders by name. */
export function checkLoraModules(modules: unknown): Record<string, string> {
  for (const [name, path] of Object.entries(checkObject('loraModules', modules))) {
    checkAdapterName('loraModules', name);
    checkString(`loraModules.${name}`, path);
  }
  return modules as Record<string, string>;
}
