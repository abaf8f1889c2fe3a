// Answers a question from Markdown pages: chunk, embed, search, rerank, answer.
//
//     node examples/rag.mjs --embedder BAAI/bge-small-en-v1.5 --reranker BAAI/bge-reranker-base 'What is a replica?'
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { Engine } from 'capstan';

const { values: flags, positionals } = parseArgs({
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
const NUM_FOUND = 20;
const NUM_USED = 2;

/** Splits a page at empty lines. A chunk has paragraphs under one heading. */
function chunksOf(file) {
  const chunks = [];
  let heading = '';
  for (const paragraph of readFileSync(file, 'utf8').split(/\n{2,}/)) {
    const last = chunks.at(-1);
    if (paragraph.startsWith('#')) heading = paragraph.replace(/^#+ /, '');
    else if (last?.heading === heading && last.text.length < CHUNK_CHARACTERS) last.text += `\n${paragraph}`;
    else chunks.push({ file, heading, text: `${heading}\n${paragraph}` });
  }
  return chunks;
}

/** Models with prompts have one for queries and one for documents. */
async function embed(engine, texts, prompt) {
  const options = engine.info.promptNames?.includes(prompt) ? { promptName: prompt } : {};
  return (await engine.embed(texts, { ...options, truncatePromptTokens: -1 })).embeddings;
}

/** Embeddings have length 1, so the dot product is the cosine. */
const similarity = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const byScore = (chunks, scores) =>
  chunks.map((chunk, i) => ({ ...chunk, score: scores[i] })).sort((a, b) => b.score - a.score);

const embedder = await Engine.load(flags.embedder);
const reranker = flags.reranker === undefined ? embedder : await Engine.load(flags.reranker);
const generator = await Engine.load(flags.generator);

const pages = readdirSync(flags.pages, { recursive: true }).filter((name) => name.endsWith('.md'));
const chunks = pages.flatMap((name) => chunksOf(join(flags.pages, name)));
const textsOf = (list) => list.map(({ text }) => text);
const vectors = await embed(embedder, textsOf(chunks), 'document');
const [query] = await embed(embedder, [question], 'query');
const cosines = vectors.map((vector) => similarity(vector, query));
const found = byScore(chunks, cosines).slice(0, NUM_FOUND);
const { scores } = await reranker.rerank(question, textsOf(found), { truncatePromptTokens: -1 });
const used = byScore(found, scores).slice(0, NUM_USED);
for (const { score, file, heading } of used) console.log(`${score.toFixed(4)}  ${file}: ${heading}`);

const notes = { role: 'system', content: `Answer from these notes:\n\n${textsOf(used).join('\n\n')}` };
const options = { temperature: 0, maxTokens: 100 };
for await (const event of generator.chat([notes, { role: 'user', content: question }], options))
  if (event.type === 'delta') process.stdout.write(event.textDelta);
console.log();
await Promise.all([...new Set([embedder, reranker, generator])].map((engine) => engine.close()));
