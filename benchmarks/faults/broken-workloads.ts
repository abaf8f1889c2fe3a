/** Deployments whose start scripts do not serve: they come, fail and are deleted. */
import type { Random } from '../../server/bench/random';
import { send, sleep } from './http';
import type { Ledger } from './ledger';
import { type Management, outcomeOf } from './management';

const SERVER = `
import socket, sys, time, signal
mode = sys.argv[1]
if mode == 'ignores-sigterm': signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('0.0.0.0', 80))
listener.listen(16)
while True:
    connection, _ = listener.accept()
    head = connection.recv(65536)
    isHealth = head.startswith(b'GET /health')
    if mode == 'never-ready': reply = b'HTTP/1.1 503 Unavailable\\r\\nContent-Length: 0\\r\\n\\r\\n'
    elif isHealth: reply = b'HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n'
    elif mode == 'rubbish': reply = bytes(range(256)) * 8
    elif mode == 'silent': time.sleep(2); reply = b''
    elif mode == 'cuts-known-length': reply = b'HTTP/1.1 200 OK\\r\\nContent-Length: 200000\\r\\n\\r\\n{"choices": ['
    elif mode == 'cuts-chunks': reply = b'HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n5\\r\\nhello\\r\\n'
    elif mode == 'cuts-events':
        reply = (b'HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n'
                 b'e\\r\\ndata: {"id":1}\\r\\n')
    else: reply = b'HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok'
    try: connection.sendall(reply)
    except OSError: pass
    connection.close()
`;
const serve = (mode: string): string => `exec /usr/bin/python3 -c '${SERVER.replaceAll("'", "'\\''")}' ${mode}`;

/** Start scripts by what is wrong with them. */
export const BROKEN: Readonly<Record<string, string>> = {
  exits: 'echo leaving; exit 3',
  hangs: 'sleep 100000',
  ...Object.fromEntries(
    ['never-ready', 'rubbish', 'silent', 'cuts-known-length', 'cuts-chunks', 'cuts-events', 'ignores-sigterm'].map(
      (mode) => [mode, serve(mode)],
    ),
  ),
};

/** A deleted deployment must end within its grace period, the supervisor's time and some more. */
const GRACE_S = 2;
const DELETED_S = 90;
const REQUESTS = 6;

export class BrokenWorkloads {
  /** Names, and whether the creation and the deletion were acknowledged. */
  readonly written = new Map<string, { id?: string; isCreated: boolean; isDeleted: boolean }>();
  readonly #api: Management;
  readonly #ledger: Ledger;
  readonly #random: Random;
  #number = 0;

  constructor(api: Management, ledger: Ledger, random: Random) {
    this.#api = api;
    this.#ledger = ledger;
    this.#random = random;
  }

  /** Creates a broken deployment, sends requests to it and deletes it. */
  async step(): Promise<void> {
    const modes = Object.keys(BROKEN);
    const mode = modes[this.#number % modes.length];
    const name = `broken ${++this.#number} ${mode}`;
    const written: { id?: string; isCreated: boolean; isDeleted: boolean } = { isCreated: false, isDeleted: false };
    this.written.set(name, written);
    const made = await this.#api.call('POST', '/deployments', {
      body: { name, start_command: BROKEN[mode], health_path: '/health', start_deadline_s: 20, grace_s: GRACE_S },
    });
    this.#ledger.count(`change ${outcomeOf(made)}`);
    if (outcomeOf(made) !== 'acknowledged') return;
    const { id, url } = made.json;
    Object.assign(written, { id, isCreated: true });
    for (let i = 0; i < REQUESTS; i++) {
      await sleep(this.#random.integer(200, 3_000));
      await this.#ask(url, mode);
    }
    await this.#delete(id, name);
  }

  /** No client may take a broken answer for a complete one. */
  async #ask(url: string, mode: string): Promise<void> {
    const received = await send(`${url}/v1/chat/completions`, { method: 'POST', body: { messages: [], stream: true } });
    const { status, isComplete, text } = received;
    this.#ledger.count('requests to broken deployments');
    const hasErrorEvent = text.includes('"error":{') && text.endsWith('data: [DONE]\n\n');
    const isWrong = status === 200 && isComplete && !hasErrorEvent && mode !== 'ignores-sigterm';
    if (isWrong)
      this.#ledger.problem(`a broken answer looks complete (${mode}): ${JSON.stringify(text.slice(0, 200))}`);
  }

  async #delete(id: string, name: string): Promise<void> {
    const beganMs = performance.now();
    const confirm = encodeURIComponent(name);
    for (;;) {
      const deleted = await this.#api.call('DELETE', `/deployments/${id}?confirm=${confirm}`);
      const outcome = outcomeOf(deleted);
      this.#ledger.count(`change ${outcome}`);
      // After an unknown outcome the deployment may be gone.
      if (outcome === 'acknowledged' || deleted.status === 404) break;
      if (!this.#ledger.isExcused('changes', beganMs))
        return this.#ledger.problem(`delete ${name}: ${deleted.status} ${deleted.text || deleted.error}`);
      await sleep(1_000);
    }
    this.written.get(name)!.isDeleted = true;
    await this.#awaitEnd(id, name);
  }

  async #awaitEnd(id: string, name: string): Promise<void> {
    for (let beganMs = performance.now(), waitedS = 0; waitedS < DELETED_S; waitedS++) {
      const { status } = await this.#api.call('GET', `/deployments/${id}`);
      if (status === 404) return this.#ledger.count('broken deployments deleted');
      await sleep(1_000);
      // The bound begins again after a fault.
      if (this.#ledger.isExcused('changes', performance.now())) waitedS = 0;
      if (performance.now() - beganMs > 600_000) break;
    }
    this.#ledger.problem(`${name} was not gone ${DELETED_S} s after it was deleted`);
  }
}
