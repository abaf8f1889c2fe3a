/** Clients of the deployments. They know the answers: greedy answers of a model never change. */
import { connect } from 'node:net';
import type { Random } from '../../server/bench/random';
import { bearer, type Received, send, sleep } from './http';
import type { Ledger } from './ledger';

export interface Served {
  name: string;
  id: string;
  url: string;
  /** Keys that stay valid. None: the deployment is open. */
  secrets: readonly string[];
}

export const QUESTIONS = [
  'What is Capstan?',
  'Count from 1 to 20.',
  'Hello!',
  'What is 7 + 5?',
  'How do I start the server?',
];
export type Answers = ReadonlyMap<string, string>;

const MAX_TOKENS = 40;
/** A slow reader takes this many bytes every 100 ms. */
const SLOW_BYTES = 64;

function bodyOf(question: string, stream: boolean): object {
  return { messages: [{ role: 'user', content: question }], max_tokens: MAX_TOKENS, temperature: 0, stream };
}

function headersOf({ secrets }: Served, random: Random): Record<string, string> {
  return secrets.length === 0 ? {} : bearer(secrets[random.integer(0, secrets.length - 1)]);
}

/** Asks before any fault, twice: the answers must agree. */
export async function learnAnswers(served: Served, random: Random): Promise<Answers> {
  const answers = new Map<string, string>();
  for (const question of [...QUESTIONS, ...QUESTIONS]) {
    const body = bodyOf(question, false);
    const { json, text } = await send(`${served.url}/v1/chat/completions`, {
      method: 'POST',
      headers: headersOf(served, random),
      body,
    });
    const answer = contentOf(json);
    if (answer === undefined || (answers.get(question) ?? answer) !== answer)
      throw new Error(`'${question}': expected one answer, got ${text}`);
    answers.set(question, answer);
  }
  return answers;
}

/** `right`, `wrong`, or `failed` with an error that the client sees. */
interface Verdict {
  verdict: 'right' | 'wrong' | 'failed';
  /** What the client saw. */
  detail: string;
}

/** A 200 is complete and right, or the client sees an error. What it saw before the error must be right too. */
export function judge(received: Received, stream: boolean, expected: string): Verdict {
  const { status, isComplete, text, json, error } = received;
  if (status === 200 && stream) return judgeStream(received, expected);
  if (status === 0 || !isComplete) return { verdict: 'failed', detail: `connection: ${error}` };
  if (status === 200) return answerVerdict(contentOf(json), expected);
  const code = json?.error?.code as string | undefined;
  const isClear = code !== undefined && (status === 429 || status >= 500);
  return { verdict: isClear ? 'failed' : 'wrong', detail: `${status} ${code ?? text.slice(0, 100)}` };
}

function judgeStream({ isComplete, text, error }: Received, expected: string): Verdict {
  // The last piece is empty, or an event that the connection cut.
  const events = text.split('\n\n').slice(0, -1);
  const data = events.flatMap((event) => (event.startsWith('data: ') ? [event.slice(6)] : []));
  const isDone = data.at(-1) === '[DONE]';
  const chunks = (isDone ? data.slice(0, -1) : data).map((chunk) => JSON.parse(chunk));
  const failure = chunks.find((chunk) => chunk.error !== undefined);
  const answer = chunks.map((chunk) => chunk.choices?.[0]?.delta?.content ?? '').join('');
  if (!expected.startsWith(answer)) return answerVerdict(answer, expected);
  if (!isComplete) return { verdict: 'failed', detail: `connection: ${error}` };
  if (!isDone) return { verdict: 'wrong', detail: `a stream without [DONE]: ${text.slice(-100)}` };
  if (failure !== undefined) return { verdict: 'failed', detail: `event ${failure.error.code}` };
  return answerVerdict(answer, expected);
}

function answerVerdict(answer: string | undefined, expected: string): Verdict {
  const isRight = answer === expected;
  return { verdict: isRight ? 'right' : 'wrong', detail: isRight ? '' : `expected '${expected}', got '${answer}'` };
}

function contentOf(json: any): string | undefined {
  return json?.choices?.[0]?.message?.content as string | undefined;
}

export class Chats {
  readonly #ledger: Ledger;
  readonly #answers: Answers;

  constructor(ledger: Ledger, answers: Answers) {
    this.#ledger = ledger;
    this.#answers = answers;
  }

  /** Returns whether the answer was right. */
  async ask(served: Served, random: Random): Promise<boolean> {
    const [question, expected] = [...this.#answers][random.integer(0, this.#answers.size - 1)];
    const stream = random.next() < 0.5;
    const beganMs = performance.now();
    const received = await send(`${served.url}/v1/chat/completions`, {
      method: 'POST',
      headers: headersOf(served, random),
      body: bodyOf(question, stream),
    });
    const { verdict, detail } = judge(received, stream, expected);
    this.#ledger.count(verdict === 'failed' ? `chat failed: ${detail}` : `chat ${verdict}`);
    const where = `${served.name}, ${stream ? 'stream' : 'no stream'}, ${Math.round(performance.now() - beganMs)} ms`;
    if (verdict === 'wrong') this.#ledger.problem(`wrong answer (${where}): ${detail}`);
    if (verdict === 'failed' && !this.#ledger.isExcused(served.name, beganMs))
      this.#ledger.problem(`an error without a fault (${where}): ${detail}`);
    return verdict === 'right';
  }

  /** Leaves in the middle of an answer. */
  async leave(served: Served, random: Random): Promise<void> {
    const leaving = new AbortController();
    const timer = setTimeout(() => leaving.abort(), random.integer(0, 300));
    await send(`${served.url}/v1/chat/completions`, {
      method: 'POST',
      headers: headersOf(served, random),
      body: bodyOf('Count from 1 to 20.', true),
      signal: leaving.signal,
    });
    clearTimeout(timer);
    this.#ledger.count('clients that left');
  }

  /** Reads a long stream slowly from a socket, for at most `forMs`. */
  async readSlowly(served: Served, random: Random, forMs: number): Promise<void> {
    const { hostname, port, pathname } = new URL(`${served.url}/v1/completions`);
    const body = JSON.stringify({
      prompt: [11, 12, 13],
      max_tokens: 1_500,
      stream: true,
      ignore_eos: true,
      logprobs: 20,
    });
    const headers = { Host: hostname, ...headersOf(served, random), 'Content-Length': Buffer.byteLength(body) };
    const socket = connect({ host: hostname, port: Number(port) });
    socket.on('error', () => {});
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
    socket.write(`POST ${pathname} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n${body}`);
    for (let waited = 0; waited < forMs && !socket.closed; waited += 100) {
      socket.read(SLOW_BYTES);
      await sleep(100);
    }
    socket.destroy();
    this.#ledger.count('slow readers');
  }
}
