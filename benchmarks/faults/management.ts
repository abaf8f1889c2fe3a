/** The management API, as a new user reaches it: from the link of the first start to a management token. */
import { bearer, type Received, send, type Sent, sleep } from './http';
import type { ServiceProcess } from './service-process';

const OWNER = { email: 'owner@example.com', name: 'Owner', password: 'correct horse battery staple' };
const START_MS = 60_000;

/** What became of a change. `unknown`: there was no response, or one that leaves it open. */
export type Outcome = 'acknowledged' | 'refused' | 'unknown';

export class Management {
  readonly #url: string;
  readonly #token: string;
  /** What must not appear in a log. The link of the first start is printed, and works once. */
  readonly secrets: readonly string[];

  private constructor(url: string, token: string, secrets: readonly string[]) {
    this.#url = url;
    this.#token = token;
    this.secrets = secrets;
  }

  /** Creates the first account with the link in the output of the service. */
  static async signUp(service: ServiceProcess): Promise<Management> {
    const link = await linkOf(service);
    const url = service.consoleUrl;
    const own = { Origin: url };
    const made = await send(`${url}/api/v1/bootstrap`, {
      method: 'POST',
      headers: own,
      body: { ...OWNER, token: link },
    });
    if (made.status !== 204) throw new Error(`bootstrap: expected status 204, got ${made.status}: ${made.text}`);
    const session = {
      ...own,
      Cookie: String(made.headers['set-cookie']).split(';')[0],
      'X-Session-Secret': String(made.headers['x-session-secret']),
    };
    const me = await send(`${url}/api/v1/me`, { headers: session });
    const { token } = (
      await send(`${url}/api/v1/tokens`, {
        method: 'POST',
        headers: { ...session, 'X-CSRF-Token': me.json.csrf_token },
        body: { name: 'faults', rights: 'write' },
      })
    ).json;
    const cookie = session.Cookie.split('=')[1];
    return new Management(url, token, [token, cookie, session['X-Session-Secret'], OWNER.password]);
  }

  call(method: string, path: string, { headers, ...more }: Omit<Sent, 'method'> = {}): Promise<Received> {
    return send(`${this.#url}/api/v1${path}`, { method, headers: { ...bearer(this.#token), ...headers }, ...more });
  }

  /** Reads until the service responds with 200. */
  async read(path: string): Promise<any> {
    for (let waited = 0; waited < START_MS; waited += 200) {
      const { status, json, text } = await this.call('GET', path);
      if (status === 200) return json;
      if (status >= 400 && status < 500) throw new Error(`GET ${path}: expected status 200, got ${status}: ${text}`);
      await sleep(200);
    }
    throw new Error(`GET ${path}: expected status 200 within ${START_MS / 1000} s`);
  }

  /** Reads all pages of a list. */
  async list(path: string): Promise<any[]> {
    const all: any[] = [];
    for (let next: string | null | undefined; next !== null;) {
      const after: string = next === undefined ? '' : `&after=${next}`;
      const page = await this.read(`${path}${path.includes('?') ? '&' : '?'}limit=100${after}`);
      all.push(...page.data);
      next = page.next as string | null;
    }
    return all;
  }
}

/** 507 says that nothing was changed. A 503 may follow a change whose response was lost. */
export function outcomeOf({ status, isComplete }: Received): Outcome {
  if (!isComplete) return status >= 400 && status < 500 ? 'refused' : 'unknown';
  if (status >= 200 && status < 300) return 'acknowledged';
  return (status >= 400 && status < 500) || status === 507 ? 'refused' : 'unknown';
}

async function linkOf(service: ServiceProcess): Promise<string> {
  for (let waited = 0; waited < START_MS; waited += 100) {
    const found = /\/setup#(\S+)/.exec(service.log);
    if (found !== null) return found[1];
    await sleep(100);
  }
  throw new Error(`expected a link to create the administrator: ${service.log}`);
}
