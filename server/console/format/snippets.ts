import type { RuntimeOptions } from '../../api/objects';

export type SnippetLanguage = 'curl' | 'python' | 'javascript';

interface SnippetValues {
  /** Without a slash at the end, and without /v1. */
  url: string;
  model: string;
  isRestricted: boolean;
}

const EMBEDDED_MODEL = 'demo';

/** What callers write as `model`, as far as the specification tells. */
export function modelName(runtime: RuntimeOptions | undefined): string {
  if (runtime === undefined) return EMBEDDED_MODEL;
  return (
    runtime.served_name ??
    (runtime.model === null
      ? EMBEDDED_MODEL
      : (runtime.model.split('/').findLast((part) => part !== '') ?? EMBEDDED_MODEL))
  );
}

/** A first request, to be copied. The key is a name of a variable: nobody's real key is put on a page. */
export function snippet(language: SnippetLanguage, { url, model, isRestricted }: SnippetValues): string {
  const quoted = JSON.stringify(model);
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
        `client = OpenAI(base_url=${JSON.stringify(`${url}/v1`)}, api_key=${isRestricted ? 'os.environ["CAPSTAN_API_KEY"]' : '"none"'})`,
        `stream = client.chat.completions.create(model=${quoted}, messages=[{"role": "user", "content": "Hello"}], stream=True)`,
        'for chunk in stream:',
        '    if chunk.choices:',
        '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
      ].join('\n');
    case 'javascript':
      return [
        "import OpenAI from 'openai';",
        '',
        `const client = new OpenAI({ baseURL: ${JSON.stringify(`${url}/v1`)}, apiKey: ${isRestricted ? 'process.env.CAPSTAN_API_KEY' : "'none'"} });`,
        `const stream = await client.chat.completions.create({ model: ${quoted}, messages: [{ role: 'user', content: 'Hello' }], stream: true });`,
        "for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta.content ?? '');",
      ].join('\n');
  }
}
