import type { RuntimeOptions } from '../../api/objects';
import { EXAMPLES } from '../../api/task-examples';

export type ModelTask = NonNullable<RuntimeOptions['task']>;
export type SnippetLanguage = 'curl' | 'python' | 'javascript';

interface SnippetValues {
  /** Without a trailing slash, and without /v1. */
  url: string;
  model: string;
  task: ModelTask;
  isRestricted: boolean;
}

const EMBEDDED_MODEL = 'demo';

/** The name that clients of a deployment send as `model`, derived from the runtime options. */
export function modelName(runtime: RuntimeOptions | undefined, deployment: string): string {
  if (runtime === undefined) return EMBEDDED_MODEL;
  // A model from the hub has the name of its repository.
  const [, repository] = /^(?:hf:)?([\w.-]+\/[\w.-]+)/.exec(runtime.model ?? '') ?? [];
  if (repository !== undefined) return runtime.served_name ?? repository;
  return runtime.served_name ?? (runtime.model?.startsWith('/') === true ? deployment : EMBEDDED_MODEL);
}

/** An example request. It reads the key from an environment variable, because no page shows a real key. */
export function snippet(language: SnippetLanguage, values: SnippetValues): string {
  const { url, isRestricted } = values;
  switch (language) {
    case 'curl':
      return curl(values);
    case 'python':
      return [
        ...(isRestricted ? ['import os'] : []),
        'from openai import OpenAI',
        '',
        `client = OpenAI(base_url=${JSON.stringify(`${url}/v1`)}, api_key=${isRestricted ? 'os.environ["CAPSTAN_API_KEY"]' : '"none"'})`,
        ...pythonCall(values),
      ].join('\n');
    case 'javascript':
      return [
        "import OpenAI from 'openai';",
        '',
        'const client = new OpenAI({',
        `  baseURL: ${JSON.stringify(`${url}/v1`)},`,
        `  apiKey: ${isRestricted ? 'process.env.CAPSTAN_API_KEY' : "'none'"},`,
        '});',
        ...javascriptCall(values),
      ].join('\n');
  }
}

function curl({ url, model, task, isRestricted }: SnippetValues): string {
  const { path, fields } = EXAMPLES[task];
  const body = JSON.stringify({ model, ...fields });
  return [
    `curl ${task === 'generate' ? '-N ' : ''}${url}${path} \\`,
    ...(isRestricted ? ['  -H "Authorization: Bearer $CAPSTAN_API_KEY" \\'] : []),
    '  -H "Content-Type: application/json" \\',
    `  -d '${body.replaceAll("'", `'\\''`)}'`,
  ].join('\n');
}

function pythonCall({ model, task }: SnippetValues): string[] {
  const quoted = JSON.stringify(model);
  switch (task) {
    case 'generate':
      return [
        'stream = client.chat.completions.create(',
        `    model=${quoted}, messages=[{"role": "user", "content": "Hello"}], stream=True`,
        ')',
        'for chunk in stream:',
        '    if chunk.choices:',
        '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
      ];
    case 'embed':
      return [
        `response = client.embeddings.create(model=${quoted}, input=["Hello", "Good morning"])`,
        'for item in response.data:',
        '    print(len(item.embedding), item.embedding[:4])',
      ];
    case 'score':
      return [
        `body = {"model": ${quoted}, "query": "How are you?", "documents": ["I am fine.", "It is raining."]}`,
        'response = client.post("/rerank", body=body, cast_to=object)',
        'for result in response["results"]:',
        '    print(result["relevance_score"], result["document"]["text"])',
      ];
  }
}

function javascriptCall({ model, task }: SnippetValues): string[] {
  const quoted = JSON.stringify(model);
  switch (task) {
    case 'generate':
      return [
        'const stream = await client.chat.completions.create({',
        `  model: ${quoted},`,
        "  messages: [{ role: 'user', content: 'Hello' }],",
        '  stream: true,',
        '});',
        "for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta.content ?? '');",
      ];
    case 'embed':
      return [
        `const { data } = await client.embeddings.create({ model: ${quoted}, input: ['Hello', 'Good morning'] });`,
        'for (const { embedding } of data) console.log(embedding.length, embedding.slice(0, 4));',
      ];
    case 'score':
      return [
        "const { results } = await client.post('/rerank', {",
        `  body: { model: ${quoted}, query: 'How are you?', documents: ['I am fine.', 'It is raining.'] },`,
        '});',
        'for (const { relevance_score, document } of results) console.log(relevance_score, document.text);',
      ];
  }
}
