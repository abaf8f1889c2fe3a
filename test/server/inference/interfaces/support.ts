/** A server with the fake engine over sockets, and the official clients of its interfaces. */
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { createTransport } from '../../../../server/http/create-transport';
import { App, type AppOptions } from '../../../../server/inference/app';
import { MemoryResponseStore } from '../../../../server/storage/responses/store';
import { Engine } from '../../../../ts';
import { TINY_TEMPLATE, tinyModel } from '../../../fakes/tiny-model';

export const log = { debug: jest.fn(), info: jest.fn(), warn: jest.fn(), error: jest.fn() };

/** The template of a model that reasons, and that shows earlier reasoning and the variables of the effort. */
const THINKING_TEMPLATE = `{#- <think></think> #}${TINY_TEMPLATE.replace(
  '{%- for call in',
  "{%- if message.reasoning_content %}{{- '<think>' + message.reasoning_content + '</think>' }}{%- endif %}{%- for call in",
)}`;

export async function loadTiny(): Promise<Engine> {
  process.env.CAPSTAN_ADDON = require.resolve('../../../fakes/fake-addon');
  return Engine.load(
    tinyModel({ 'tokenizer_config.json': { eos_token: '<|im_end|>', chat_template: THINKING_TEMPLATE } }),
    { maxModelLen: 200_000 },
  );
}

export interface Served {
  url: string;
  app: App;
  openai: OpenAI;
  anthropic: Anthropic;
  close(): Promise<void>;
}

export async function serveTiny(engine: Engine, options: Partial<AppOptions> = {}): Promise<Served> {
  const app = new App({
    servedNames: ['tiny'],
    healthStallTimeoutMs: 1000,
    sse: { pingIntervalMs: 15_000, slowClientTimeoutMs: 60_000 },
    log: log as never,
    responses: new MemoryResponseStore({ maxBytes: 10_000_000, ttlMs: 60_000 }),
    ...options,
  });
  app.serve(engine);
  const transport = await createTransport('node', {
    handler: (request, reply) => app.handle(request, reply),
    maxBodyBytes: 32 << 20,
    bodyTimeoutMs: 60_000,
  });
  const url = `http://127.0.0.1:${await transport.listen('127.0.0.1', 0)}`;
  return {
    url,
    app,
    openai: new OpenAI({ baseURL: `${url}/v1`, apiKey: 'any', maxRetries: 0 }),
    anthropic: new Anthropic({ baseURL: url, apiKey: 'any', maxRetries: 0 }),
    close: () => transport.close(),
  };
}

export async function until(isTrue: () => boolean): Promise<void> {
  for (const startedMs = performance.now(); performance.now() - startedMs < 60_000;) {
    if (isTrue()) return;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  throw new Error('timed out');
}

/** The text of a tool call in the form of the tiny model. */
export function callText(name: string, args: object): string {
  return `<tool_call>\n${JSON.stringify({ name, arguments: args })}\n</tool_call>`;
}
