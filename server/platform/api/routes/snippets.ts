import { input, object, oneOf } from '../json-schema';
import { MODEL_TASKS, type ModelTask } from '../../deployments/model-task';
import { ApiProblem } from '../problem';
import { type ApiRoute, defineRoute } from '../route';
import { EXAMPLES } from '../task-examples';

const LANGUAGES = ['curl', 'python', 'javascript'] as const;
type Language = (typeof LANGUAGES)[number];

/** Placeholder for the key, whose secret cannot be shown again. */
const KEY_PLACEHOLDER = 'YOUR_API_KEY';
const DEFAULT_MODEL = 'YOUR_MODEL';

const BASES = ['deployment', 'api'] as const;

const SnippetsQuery = input({
  lang: oneOf(LANGUAGES),
  model: {
    type: 'string',
    minLength: 1,
    maxLength: 200,
    pattern: '^[!-~]+$',
    description: 'Model name that the deployment serves',
  },
  base: {
    ...oneOf(BASES),
    description:
      'URL that the code calls: that of the deployment, or api_url, where the model is the name of the deployment. Default: deployment',
  },
  task: { ...oneOf(MODEL_TASKS), description: 'What the model does. Default: generate' },
});
const Snippets = object({
  url: { type: 'string' },
  needs_key: { type: 'boolean' },
  snippets: {
    type: 'array',
    items: object({ lang: oneOf(LANGUAGES), title: { type: 'string' }, code: { type: 'string' } }),
  },
});

export const ROUTES: readonly ApiRoute[] = [
  defineRoute({
    method: 'GET',
    path: '/api/v1/deployments/{id}/snippets',
    summary: 'Get code that calls the deployment: curl, Python, JavaScript',
    tag: 'deployments',
    auth: 'any',
    query: SnippetsQuery,
    responses: { 200: Snippets },
    problems: ['wrong_state'],
    handle: async ({
      context: { store, serving },
      actor,
      params,
      query: { lang, model, task = 'generate', base = 'deployment' },
    }) => {
      const { id, name, accessControl } = await store.demandDeployment(actor, params.id, 'read');
      const target = serving?.targets.findById(id);
      if (serving === undefined || target === undefined)
        throw new ApiProblem('wrong_state', 'the deployment has no address on this gateway');
      const isApi = base === 'api';
      const url = isApi ? serving.apiUrl : serving.urlOf(target.slug);
      const needsKey = isApi || accessControl;
      const options = { url, model: model ?? (isApi ? name : DEFAULT_MODEL), needsKey, task };
      const wanted = lang === undefined ? LANGUAGES : [lang];
      return {
        status: 200,
        body: {
          url,
          needs_key: needsKey,
          snippets: wanted.map((language) => snippet(language, options)),
        },
      };
    },
  }),
];

interface SnippetOptions {
  url: string;
  model: string;
  needsKey: boolean;
  task: ModelTask;
}

function snippet(lang: Language, options: SnippetOptions): { lang: Language; title: string; code: string } {
  switch (lang) {
    case 'curl':
      return { lang, title: 'curl', code: curl(options) };
    case 'python':
      return { lang, title: 'Python', code: python(options) };
    case 'javascript':
      return { lang, title: 'JavaScript', code: javascript(options) };
  }
}

function curl({ url, model, needsKey, task }: SnippetOptions): string {
  const { path, fields } = EXAMPLES[task];
  const body = JSON.stringify({ model, ...fields });
  return [
    `curl ${task === 'generate' ? '-N ' : ''}${shellText(url + path)} \\`,
    ...(needsKey ? [`  -H 'Authorization: Bearer ${KEY_PLACEHOLDER}' \\`] : []),
    "  -H 'Content-Type: application/json' \\",
    `  -d ${shellText(body)}`,
  ].join('\n');
}

function python({ url, model, needsKey, task }: SnippetOptions): string {
  return [
    'from openai import OpenAI',
    '',
    `client = OpenAI(base_url=${JSON.stringify(`${url}/v1`)}, api_key=${JSON.stringify(needsKey ? KEY_PLACEHOLDER : 'none')})`,
    ...PYTHON_CALLS[task](JSON.stringify(model)),
  ].join('\n');
}

const PYTHON_CALLS: Readonly<Record<ModelTask, (model: string) => string[]>> = {
  generate: (model) => [
    'stream = client.chat.completions.create(',
    `    model=${model},`,
    '    messages=[{"role": "user", "content": "Hello"}],',
    '    stream=True,',
    ')',
    'for chunk in stream:',
    '    if chunk.choices:',
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
  ],
  embed: (model) => [
    `response = client.embeddings.create(model=${model}, input=["Hello", "Good morning"])`,
    'for item in response.data:',
    '    print(len(item.embedding), item.embedding[:4])',
  ],
  score: (model) => [
    `body = {"model": ${model}, "query": "How are you?", "documents": ["I am fine.", "It is raining."]}`,
    'response = client.post("/rerank", body=body, cast_to=object)',
    'for result in response["results"]:',
    '    print(result["relevance_score"], result["document"]["text"])',
  ],
};

function javascript({ url, model, needsKey, task }: SnippetOptions): string {
  return [
    "import OpenAI from 'openai';",
    '',
    `const client = new OpenAI({ baseURL: ${JSON.stringify(`${url}/v1`)}, apiKey: ${JSON.stringify(needsKey ? KEY_PLACEHOLDER : 'none')} });`,
    ...JAVASCRIPT_CALLS[task](JSON.stringify(model)),
  ].join('\n');
}

const JAVASCRIPT_CALLS: Readonly<Record<ModelTask, (model: string) => string[]>> = {
  generate: (model) => [
    'const stream = await client.chat.completions.create({',
    `  model: ${model},`,
    "  messages: [{ role: 'user', content: 'Hello' }],",
    '  stream: true,',
    '});',
    "for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? '');",
  ],
  embed: (model) => [
    `const { data } = await client.embeddings.create({ model: ${model}, input: ['Hello', 'Good morning'] });`,
    'for (const { embedding } of data) console.log(embedding.length, embedding.slice(0, 4));',
  ],
  score: (model) => [
    "const { results } = await client.post('/rerank', {",
    `  body: { model: ${model}, query: 'How are you?', documents: ['I am fine.', 'It is raining.'] },`,
    '});',
    'for (const { relevance_score, document } of results) console.log(relevance_score, document.text);',
  ],
};

/** Quotes for a POSIX shell. Inside single quotes only the single quote is special. */
function shellText(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
