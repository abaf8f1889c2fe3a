import { SECRET_HEADER } from 'capstan/internal';
import type { Choice } from './balancer';
import type { ResponseBody } from './response-body';
import { allReplicas, type Targets } from './targets';

const MODELS_PATH = '/v1/models';
const TIMEOUT_MS = 5_000;
/** A longer list is not read. */
const MAX_LIST_BYTES = 1024 * 1024;
const HAS_NO_LIST = new Set([404, 405]);
const NONE: readonly string[] = [];

/** The names that replicas give their models, read once for each replica. */
export class ServedModels {
  readonly #byReplica = new Map<string, Promise<readonly string[]>>();
  readonly #unsubscribe: () => void;

  constructor(targets: Targets) {
    const known = new Map<string, readonly string[]>();
    this.#unsubscribe = targets.onChange((slug, target) => {
      const ids = target === undefined ? [] : allReplicas(target).map(({ id }) => id);
      for (const id of known.get(slug) ?? []) if (!ids.includes(id)) this.#byReplica.delete(id);
      if (target === undefined) known.delete(slug);
      else known.set(slug, ids);
    });
  }

  /**
   * Returns the name that the replica knows for `requested`, the name of its deployment: the same name if it serves
   * one, else its first model. A replica without a list gets `requested`.
   */
  async nameFor({ replica, upstream }: Pick<Choice, 'replica' | 'upstream'>, requested: string): Promise<string> {
    let reading = this.#byReplica.get(replica.id);
    if (reading === undefined) {
      reading = readNames({ replica, upstream });
      this.#byReplica.set(replica.id, reading);
    }
    const names = await reading.catch(() => {
      // The request itself finds out whether the replica can be reached. The next one reads the list again.
      this.#byReplica.delete(replica.id);
      return NONE;
    });
    return names.length === 0 || names.includes(requested) ? requested : names[0];
  }

  close(): void {
    this.#unsubscribe();
    this.#byReplica.clear();
  }
}

/** Rejects if the replica does not respond, or cannot respond yet. Returns no names if it has no list. */
async function readNames({ replica, upstream }: Pick<Choice, 'replica' | 'upstream'>): Promise<readonly string[]> {
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const { status, body } = await upstream.send(
    {
      method: 'GET',
      target: MODELS_PATH,
      headers: ['Host', 'localhost', 'Accept', 'application/json', SECRET_HEADER, replica.secret],
      body: undefined,
    },
    signal,
  );
  if (status !== 200) {
    body.destroy();
    if (HAS_NO_LIST.has(status)) return NONE;
    throw new Error(`the list of models has status ${status}`);
  }
  return namesIn(await readAll(body));
}

function readAll(body: ResponseBody): Promise<string> {
  return new Promise((resolve, reject) => {
    const pieces: Buffer[] = [];
    let numBytes = 0;
    body.flow({
      piece: (bytes) => {
        numBytes += bytes.length;
        pieces.push(bytes);
        if (numBytes <= MAX_LIST_BYTES) return;
        body.destroy();
        resolve('');
      },
      end: () => resolve(Buffer.concat(pieces).toString()),
      fail: reject,
    });
  });
}

function namesIn(text: string): readonly string[] {
  try {
    const { data } = JSON.parse(text) as { data?: unknown };
    if (!Array.isArray(data)) return NONE;
    return data.flatMap((model: { id?: unknown } | null) => (typeof model?.id === 'string' ? [model.id] : []));
  } catch {
    return NONE;
  }
}
