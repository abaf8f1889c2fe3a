import http from 'node:http';
import https from 'node:https';
import { createParser } from 'eventsource-parser';
import type { ServeBenchOptions } from './options';
import type { Outcome } from './outcome';
import type { Prompt } from './workload';

const DEFAULT_ENDPOINTS = { openai: '/v1/completions', 'openai-chat': '/v1/chat/completions' } as const;

/** The fields of a stream's events that the benchmark reads. */
interface StreamEvent {
  choices?: {
    text?: string;
    delta?: {
      content?: string | null;
      reasoning?: string | null;
      reasoning_content?: string | null;
      tool_calls?: unknown[];
    };
  }[];
  usage?: {
    prompt_tokens?: number;
    completion_tokens?: number;
    prompt_tokens_details?: { cached_tokens?: number } | null;
  } | null;
  error?: { code?: unknown; type?: unknown; message?: unknown } | string;
}

/** The server under test. Each open request has a connection, which later requests reuse. */
export class Target {
  readonly #options: ServeBenchOptions;
  readonly #agent: http.Agent;
  readonly #request: typeof http.request;
  readonly #headers: Record<string, string>;
  /** Functions that abort the open requests. */
  readonly #openRequests = new Set<(errorKind: string, errorMessage: string) => void>();
  readonly url: string;

  constructor(options: ServeBenchOptions) {
    const isTls = options.baseUrl.startsWith('https:');
    this.#options = options;
    this.#agent = new (isTls ? https : http).Agent({
      keepAlive: true,
      noDelay: true,
      maxSockets: Infinity,
      maxFreeSockets: Infinity,
    });
    this.#request = isTls ? https.request : http.request;
    this.#headers = {
      ...(options.apiKey === undefined ? {} : { Authorization: `Bearer ${options.apiKey}` }),
      ...options.headers,
    };
    this.url = options.baseUrl + (options.endpoint ?? DEFAULT_ENDPOINTS[options.backend]);
  }

  /** Fetches a JSON document. Throws Error with the status and body of any other response. */
  async getJson(path: string): Promise<unknown> {
    const { status, body } = await new Promise<{ status: number; body: string }>((resolve, reject) => {
      const request = this.#open(this.#options.baseUrl + path, { method: 'GET', timeout: 10_000 }, (response) => {
        readAll(response).then((text) => resolve({ status: response.statusCode ?? 0, body: text }), reject);
      });
      request.on('timeout', () => request.destroy(new Error('no response within 10 s')));
      request.on('error', reject);
      request.end();
    });
    if (status !== 200) throw new Error(`GET ${path} returned ${status}: ${describeBody(body).message}`);
    return JSON.parse(body) as unknown;
  }

  /** Sends one request and reads its stream to the end. Failures are part of the outcome: it never rejects. */
  send(prompt: Prompt, model: string, dueAt: number): Promise<Outcome> {
    const body = Buffer.from(JSON.stringify(this.#body(prompt, model)));
    const outcome: Outcome = {
      dueAt,
      sentAt: performance.now(),
      chunkTimes: [],
      endedAt: 0,
      promptTokens: prompt.numTokens,
      cachedTokens: 0,
      completionTokens: 0,
    };
    return new Promise((resolve) => {
      const end = (errorKind?: string, errorMessage?: string) => {
        if (outcome.endedAt !== 0) return;
        clearTimeout(timer);
        this.#openRequests.delete(abort);
        outcome.endedAt = performance.now();
        if (errorKind !== undefined) Object.assign(outcome, { errorKind, errorMessage });
        resolve(outcome);
      };
      const abort = (errorKind: string, errorMessage: string) => {
        end(errorKind, errorMessage);
        request.destroy();
      };
      const request = this.#open(
        this.url,
        { method: 'POST', headers: { 'Content-Type': 'application/json', 'Content-Length': body.length } },
        (response) => {
          response.on('error', (error) => end('connection cut', error.message));
          if (response.statusCode === 200) return readStream(response, outcome, end);
          readAll(response).then(
            (text) => {
              const { code, message } = describeBody(text);
              end(`http ${response.statusCode}${code === '' ? '' : ` ${code}`}`, message);
            },
            () => {},
          );
        },
      );
      const timer = setTimeout(
        () => abort('timeout', `not finished within ${this.#options.timeoutMs / 1000} s`),
        this.#options.timeoutMs,
      );
      this.#openRequests.add(abort);
      request.on('error', (error: NodeJS.ErrnoException) => end(`connection ${error.code ?? 'failed'}`, error.message));
      request.end(body);
    });
  }

  /** Aborts all open requests. Their outcome has the kind `stopped`. */
  stop(): void {
    for (const abort of [...this.#openRequests]) abort('stopped', 'the benchmark was stopped');
  }

  close(): void {
    this.#agent.destroy();
  }

  #open(
    url: string,
    init: http.RequestOptions,
    onResponse: (response: http.IncomingMessage) => void,
  ): http.ClientRequest {
    const { socketPath } = this.#options;
    return this.#request(
      url,
      {
        ...init,
        agent: this.#agent,
        headers: { ...this.#headers, ...(init.headers as object) },
        ...(socketPath === undefined ? {} : { socketPath }),
      },
      onResponse,
    );
  }

  #body({ prompt, maxTokens }: Prompt, model: string): object {
    const { backend, sampling, ignoreEos, extraBody } = this.#options;
    return {
      model,
      ...(backend === 'openai' ? { prompt } : { messages: [{ role: 'user', content: prompt }] }),
      max_tokens: maxTokens,
      ...sampling,
      stream: true,
      stream_options: { include_usage: true },
      ...(ignoreEos ? { ignore_eos: true } : {}),
      ...extraBody,
    };
  }
}

function readStream(
  response: http.IncomingMessage,
  outcome: Outcome,
  end: (errorKind?: string, errorMessage?: string) => void,
): void {
  let numTexts = 0;
  let hasUsage = false;
  let isDone = false;
  let receivedAt = 0;
  const onEvent = ({ data }: { data: string }): void => {
    if (data === '[DONE]') {
      isDone = true;
      return;
    }
    const event = JSON.parse(data) as StreamEvent;
    if (event.error !== undefined) {
      const { code, message } = describeError(event.error);
      return end(`stream error${code === '' ? '' : ` ${code}`}`, message);
    }
    if (event.choices?.some(hasText)) {
      numTexts++;
      outcome.chunkTimes.push(receivedAt);
    }
    if (typeof event.usage?.completion_tokens === 'number') {
      hasUsage = true;
      outcome.completionTokens = event.usage.completion_tokens;
      outcome.promptTokens = event.usage.prompt_tokens ?? outcome.promptTokens;
      outcome.cachedTokens = event.usage.prompt_tokens_details?.cached_tokens ?? 0;
    }
  };
  const parser = createParser({ onEvent });
  const feed = (text: string): void => {
    try {
      parser.feed(text);
    } catch (error) {
      end('unreadable event', (error as Error).message);
    }
  };
  response.setEncoding('utf8');
  response.on('data', (text: string) => {
    receivedAt = performance.now();
    feed(text);
  });
  response.on('end', () => {
    // Some servers do not send the blank line after the last event.
    feed('\n');
    if (!hasUsage) outcome.completionTokens = numTexts;
    if (isDone) end();
    else end('stream without [DONE]', 'the stream ended before [DONE]');
  });
}

function hasText({ text, delta }: NonNullable<StreamEvent['choices']>[number]): boolean {
  if (text !== undefined) return text !== '';
  return (
    (delta?.content ?? '') !== '' ||
    (delta?.reasoning ?? '') !== '' ||
    (delta?.reasoning_content ?? '') !== '' ||
    (delta?.tool_calls?.length ?? 0) > 0
  );
}

async function readAll(response: http.IncomingMessage): Promise<string> {
  response.setEncoding('utf8');
  let text = '';
  for await (const piece of response) text += piece as string;
  return text;
}

/** Returns the code and the message of an error body. Servers differ in its shape. */
function describeBody(body: string): { code: string; message: string } {
  try {
    const parsed = JSON.parse(body) as { error?: StreamEvent['error'] };
    if (parsed.error !== undefined) return describeError(parsed.error);
  } catch {
    // Not JSON: the body itself is the message.
  }
  return { code: '', message: body.slice(0, 200) };
}

function describeError(error: NonNullable<StreamEvent['error']>): { code: string; message: string } {
  if (typeof error === 'string') return { code: '', message: error };
  const code = [error.code, error.type].find((value) => typeof value === 'string') ?? '';
  return { code, message: (typeof error.message === 'string' ? error.message : '').slice(0, 200) };
}
