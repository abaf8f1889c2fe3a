/** Makes, changes, rotates, disables and deletes keys, and remembers what the service acknowledged. */
import type { Random } from '../../server/bench/random';
import { bearer, type Received, send, sleep } from './http';
import type { Served } from './chats';
import type { Ledger } from './ledger';
import { type Management, type Outcome, outcomeOf } from './management';

export interface KeyState {
  name: string;
  state: 'active' | 'disabled' | 'deleted';
  /** Undefined: a lost response contained it. */
  secret: string | undefined;
}

export interface WrittenKey {
  id: string;
  isUserLevel: boolean;
  state: KeyState;
  /** The state if a change without a response took effect. Such a key is not changed until it is read again. */
  maybe?: KeyState | undefined;
  maybeSinceMs?: number | undefined;
  rev: number;
  /** Secrets that must be refused. */
  revoked: string[];
}

const MAX_LIVE = 12;
/** The service allows 300 new keys per hour and owner. */
const MAX_CREATED = 130;
/** After this time no change without a response can take effect any more: statements end after 10 s. */
const SETTLED_MS = 60_000;
/** A change that the service must refuse. */
const WRONG = 'wrong change';

export class KeyWriter {
  readonly keys: WrittenKey[] = [];
  /** Names of creations, and whether they were acknowledged. Each has one key at most. */
  readonly created = new Map<string, boolean>();
  /** Names of changes that were refused. */
  readonly refusedNames = new Set<string>();
  readonly #prefix: string;
  readonly #api: Management;
  readonly #ledger: Ledger;
  readonly #served: Served;
  readonly #random: Random;
  #number = 0;
  #numCreated = 0;

  /** @param served The deployment where keys are tried. Keys of deployments reach only this one. */
  constructor(prefix: string, api: Management, ledger: Ledger, served: Served, random: Random) {
    this.#prefix = prefix;
    this.#api = api;
    this.#ledger = ledger;
    this.#served = served;
    this.#random = random;
  }

  get secrets(): string[] {
    return this.keys.flatMap(({ state, revoked }) => [
      ...revoked,
      ...(state.secret === undefined ? [] : [state.secret]),
    ]);
  }

  async step(): Promise<void> {
    const live = this.keys.filter(({ state, maybe }) => state.state !== 'deleted' && maybe === undefined);
    const mayCreate = this.#numCreated < MAX_CREATED && live.length < MAX_LIVE;
    const settled = this.keys.find(({ maybeSinceMs = Infinity }) => maybeSinceMs < performance.now() - SETTLED_MS);
    if (settled !== undefined) return this.#settle(settled);
    if (mayCreate && (live.length < MAX_LIVE / 2 || this.#random.next() < 0.05)) return this.#create();
    if (live.length === 0) return;
    const key = live[this.#random.integer(0, live.length - 1)];
    if (this.#random.next() < 0.04) return this.#delete(key);
    const changes = [this.#rename, this.#toggle, this.#toggle, this.#rotate, this.#refuse];
    await changes[this.#random.integer(0, changes.length - 1)].call(this, key);
  }

  /** Reads a key whose last change had no response. */
  async #settle(key: WrittenKey): Promise<void> {
    const { status, json } = await this.#api.call('GET', `/keys/${key.id}`);
    const { state, maybe } = key;
    if ((status !== 200 && status !== 404) || maybe === undefined) return;
    const isIn = ({ name, state: kind }: KeyState): boolean =>
      status === 404 ? kind === 'deleted' : json.name === name && json.state === kind;
    const found = [state, maybe].find(isIn);
    if (found === undefined)
      this.#ledger.problem(
        `key ${key.id}: expected the state before or after a change, got ${json.state} '${json.name}'`,
      );
    this.#ledger.count('changes without a response read later');
    key.state = { ...(found ?? state), secret: state.secret === maybe.secret ? state.secret : undefined };
    key.rev = json.rev ?? key.rev;
    key.maybe = key.maybeSinceMs = undefined;
  }

  #newName(): string {
    return `${this.#prefix} ${++this.#number}`;
  }

  async #create(): Promise<void> {
    const name = this.#newName();
    const isUserLevel = this.#random.next() < 0.5;
    const body = { name, ...(isUserLevel ? {} : { deployments: [this.#served.id] }) };
    this.created.set(name, false);
    // A client that got no response repeats the request with the same Idempotency-Key.
    for (let attempt = 0; attempt < 5; attempt++) {
      if (attempt === 0) this.#numCreated++;
      const headers = { 'Idempotency-Key': name.replaceAll(' ', '-') };
      const { received, outcome } = await this.#send('create', 'POST', '', { body, headers });
      if (outcome === 'refused' && attempt === 0) this.created.delete(name);
      if (outcome === 'refused' && attempt === 0) this.refusedNames.add(name);
      if (outcome === 'refused') return;
      if (outcome === 'acknowledged') {
        const { id, rev, secret } = received.json;
        this.created.set(name, true);
        const key: WrittenKey = {
          id,
          isUserLevel,
          rev,
          revoked: [],
          state: { name, state: 'active', secret: secret ?? undefined },
        };
        this.keys.push(key);
        if (key.state.secret !== undefined) await this.#tryValid(key.state.secret);
        return;
      }
      await sleep(1_000);
    }
  }

  async #rename(key: WrittenKey): Promise<void> {
    const name = this.#newName();
    const headers = { 'If-Match': `"${key.rev}"` };
    await this.#change('rename', key, { ...key.state, name }, 'PATCH', '', { body: { name }, headers });
  }

  async #toggle(key: WrittenKey): Promise<void> {
    const isOn = key.state.state === 'active';
    const next: KeyState = { ...key.state, state: isOn ? 'disabled' : 'active' };
    const done = await this.#change(isOn ? 'disable' : 'enable', key, next, 'POST', isOn ? '/disable' : '/enable');
    if (!done || key.state.secret === undefined) return;
    await (isOn ? this.#tryRevoked(key.state.secret) : this.#tryValid(key.state.secret));
  }

  async #rotate(key: WrittenKey): Promise<void> {
    const { secret } = key.state;
    if (key.state.state !== 'active') return;
    const done = await this.#change('rotate', key, { ...key.state, secret: undefined }, 'POST', '/rotate');
    if (!done) return;
    if (secret !== undefined) {
      key.revoked.push(secret);
      await this.#tryRevoked(secret);
    }
    if (key.state.secret !== undefined) await this.#tryValid(key.state.secret);
  }

  async #delete(key: WrittenKey): Promise<void> {
    const confirm = `?confirm=${encodeURIComponent(key.state.name)}`;
    const next: KeyState = { ...key.state, state: 'deleted' };
    const done = await this.#change('delete', key, next, 'DELETE', confirm);
    if (!done || key.state.secret === undefined) return;
    key.revoked.push(key.state.secret);
    await this.#tryRevoked(key.state.secret);
  }

  /** Sends changes that the service must refuse. */
  async #refuse(key: WrittenKey): Promise<void> {
    const name = this.#newName();
    this.refusedNames.add(name);
    const { received, outcome } =
      this.#random.next() < 0.5
        ? await this.#send(WRONG, 'PATCH', `/${key.id}`, { body: { name }, headers: { 'If-Match': '"1000000"' } })
        : await this.#send(WRONG, 'DELETE', `/${key.id}?confirm=${encodeURIComponent(name)}`);
    if (outcome === 'acknowledged') this.#ledger.problem(`a wrong change was acknowledged: ${received.text}`);
  }

  /** Returns whether the change was acknowledged. */
  async #change(
    what: string,
    key: WrittenKey,
    next: KeyState,
    method: string,
    suffix: string,
    more: Parameters<Management['call']>[2] = {},
  ): Promise<boolean> {
    const { received, outcome } = await this.#send(what, method, `/${key.id}${suffix}`, more);
    if (outcome === 'unknown') Object.assign(key, { maybe: next, maybeSinceMs: performance.now() });
    if (outcome === 'refused' && next.name !== key.state.name) this.refusedNames.add(next.name);
    if (outcome !== 'acknowledged') return false;
    const { rev, secret } = received.json;
    key.rev = rev;
    key.state = secret === undefined ? next : { ...next, secret: secret ?? undefined };
    return true;
  }

  async #send(
    what: string,
    method: string,
    path: string,
    more: Parameters<Management['call']>[2] = {},
  ): Promise<{ received: Received; outcome: Outcome }> {
    const beganMs = performance.now();
    const received = await this.#api.call(method, `/keys${path}`, more);
    const outcome = outcomeOf(received);
    const { status, json, error } = received;
    this.#ledger.count(`change ${what === WRONG ? 'wrong, ' : ''}${outcome}`);
    const isFine = what === WRONG ? status === 412 || status === 422 : outcome === 'acknowledged';
    if (!isFine && !this.#ledger.isExcused('changes', beganMs))
      this.#ledger.problem(`${what} of a key: ${status} ${json?.code ?? error}`);
    return { received, outcome };
  }

  async #tryRevoked(secret: string): Promise<void> {
    const { status } = await tryKey(this.#served.url, secret, this.#random);
    this.#ledger.count('revoked keys tried');
    if (status === 200) this.#ledger.problem('a revoked key was accepted after its change was acknowledged');
  }

  async #tryValid(secret: string): Promise<void> {
    const { status, text } = await tryKey(this.#served.url, secret, this.#random);
    this.#ledger.count('valid keys tried');
    if (status === 401 || status === 403)
      this.#ledger.problem(`a valid key was refused after its change was acknowledged: ${text}`);
  }
}

/** The service limits wrong secrets by address, so each attempt has another one. */
export function tryKey(url: string, secret: string, random: Random): Promise<Received> {
  const localAddress = `127.${random.integer(1, 60)}.${random.integer(0, 255)}.${random.integer(1, 254)}`;
  return send(`${url}/v1/models`, { headers: bearer(secret), localAddress });
}
