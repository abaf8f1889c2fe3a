// Answers a question from Markdown pages: chunk, embed, search, rerank, answer. Each step is one function below.
//
//     node examples/rag.mjs --embedder BAAI/bge-small-en-v1.5 --reranker BAAI/bge-reranker-base 'What is a replica?'
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { Engine } from 'capstan';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    embedder: { type: 'string', default: 'BAAI/bge-small-en-v1.5' },
    reranker: { type: 'string' }, // without one, the embedding model also sorts what the search has found
    generator: { type: 'string', default: 'demo' },
    pages: { type: 'string', default: join(import.meta.dirname, '../docs') },
  },
});
const [question = 'What is Capstan?'] = positionals;
const CHUNK_CHARACTERS = 600;
const [NUM_FOUND, NUM_USED] = [20, 2];

/** Splits a page at empty lines, and joins the paragraphs to chunks that keep the heading above them. */
function chunksOf(file) {
  const chunks = [];
  let heading = '';
  for (const paragraph of readFileSync(file, 'utf8').split(/\n{2,}/)) {
    if (paragraph.startsWith('#')) heading = paragraph.replace(/^#+ /, '');
    else if (chunks.at(-1)?.heading === heading && chunks.at(-1).text.length + paragraph.length < CHUNK_CHARACTERS)
      chunks.at(-1).text += `\n${paragraph}`;
    else chunks.push({ file, heading, text: `${heading}\n${paragraph}` });
  }
  return chunks;
}

/** Embeds texts. Models with prompts have one for queries and one for documents. */
async function embed(engine, texts, prompt) {
  const promptName = engine.info.promptNames?.includes(prompt) ? { promptName: prompt } : {};
  return (await engine.embed(texts, { ...promptName, truncatePromptTokens: -1 })).embeddings;
}

/** Embeddings have length 1, so the dot product is the cosine. */
const similarity = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const best = (items, scores, count) =>
  items
    .map((item, i) => ({ ...item, score: scores[i] }))
    .sort((a, b) => b.score - a.score)
    .slice(0, count);

const embedder = await Engine.load(values.embedder);
const reranker = values.reranker === undefined ? embedder : await Engine.load(values.reranker);
const generator = await Engine.load(values.generator);

const pages = readdirSync(values.pages, { recursive: true }).filter((name) => name.endsWith('.md'));
const chunks = pages.flatMap((name) => chunksOf(join(values.pages, name)));
const texts = chunks.map(({ text }) => text);
const vectors = await embed(embedder, texts, 'document');
const [query] = await embed(embedder, [question], 'query');
const found = best(
  chunks,
  vectors.map((vector) => similarity(vector, query)),
  NUM_FOUND,
);
const { scores } = await reranker.rerank(
  question,
  found.map(({ text }) => text),
  { truncatePromptTokens: -1 },
);
const used = best(found, scores, NUM_USED);
for (const { score, file, heading } of used) console.log(`${score.toFixed(4)}  ${file}: ${heading}`);

const system = `Answer from these notes:\n\n${used.map(({ text }) => text).join('\n\n')}`;
const messages = [
  { role: 'system', content: system },
  { role: 'user', content: question },
];
for await (const event of generator.chat(messages, { temperature: 0, maxTokens: 100 }))
  if (event.type === 'delta') process.stdout.write(event.textDelta);
console.log();
await Promise.all([...new Set([embedder, reranker, generator])].map((engine) => engine.close()));
