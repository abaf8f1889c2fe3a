import type { RuntimeOptions } from '../../api/objects';

export type SnippetLanguage = 'curl' | 'python' | 'javascript';

interface SnippetValues {
  /** Without a trailing slash, and without /v1. */
  url: string;
  model: string;
  isRestricted: boolean;
}

const EMBEDDED_MODEL = 'demo';

/** The name that clients send as `model`, derived from the runtime options. */
export function modelName(runtime: RuntimeOptions | undefined): string {
  if (runtime === undefined) return EMBEDDED_MODEL;
  // A model of the hub has the name of its repository.
  const [, repository] = /^(?:hf:)?([\w.-]+\/[\w.-]+)/.exec(runtime.model ?? '') ?? [];
  if (repository !== undefined) return runtime.served_name ?? repository;
  const folder = runtime.model?.split('/').findLast((part) => part !== '');
  return runtime.served_name ?? folder ?? EMBEDDED_MODEL;
}

/** An example request. It reads the key from an environment variable, because no page shows a real key. */
export function snippet(language: SnippetLanguage, { url, model, isRestricted }: SnippetValues): string {
  const quoted = JSON.stringify(model);
  const baseUrl = JSON.stringify(`${url}/v1`);
  switch (language) {
    case 'curl': {
      const body = JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello' }], stream: true });
      return [
        `curl -N ${url}/v1/chat/completions \\`,
        ...(isRestricted ? ['  -H "Authorization: Bearer $CAPSTAN_API_KEY" \\'] : []),
        '  -H "Content-Type: application/json" \\',
        `  -d '${body.replaceAll("'", `'\\''`)}'`,
      ].join('\n');
    }
    case 'python':
      return [
        ...(isRestricted ? ['import os'] : []),
        'from openai import OpenAI',
        '',
        `client = OpenAI(base_url=${baseUrl}, api_key=${isRestricted ? 'os.environ["CAPSTAN_API_KEY"]' : '"none"'})`,
        'stream = client.chat.completions.create(',
        `    model=${quoted}, messages=[{"role": "user", "content": "Hello"}], stream=True`,
        ')',
        'for chunk in stream:',
        '    if chunk.choices:',
        '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
      ].join('\n');
    case 'javascript':
      return [
        "import OpenAI from 'openai';",
        '',
        'const client = new OpenAI({',
        `  baseURL: ${baseUrl},`,
        `  apiKey: ${isRestricted ? 'process.env.CAPSTAN_API_KEY' : "'none'"},`,
        '});',
        'const stream = await client.chat.completions.create({',
        `  model: ${quoted},`,
        "  messages: [{ role: 'user', content: 'Hello' }],",
        '  stream: true,',
        '});',
        "for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta.content ?? '');",
      ].join('\n');
  }
}
