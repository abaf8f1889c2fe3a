// Sends the 124 requests recorded with vLLM 0.32 to our server and compares status, keys and kinds of values.
//   node -r ./test/oracle/register-ts.cjs test/oracle/wire.ts [--transport node] [--write test/oracle/wire.md]
// Prints the differences without a reason. Exits with 1 if there are any.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { killAll, prepare, startServer } from '../fakes/server-process';
import { differences, shapeOf } from './wire-shape';
import { type Found, verdictOf } from './wire-verdicts';

export interface Recorded {
  name: string;
  request: string;
  body: unknown;
  status: number;
  headers: Record<string, string>;
  response: string;
}

export const RECORDED = JSON.parse(readFileSync(join(__dirname, 'wire-vllm-0.32.json'), 'utf8')) as Recorded[];

/** The settings of the recording. */
export const SERVE_ARGS = [
  'demo',
  '--served-model-name',
  'm',
  '--max-model-len',
  '1024',
  '--max-num-seqs',
  '8',
  '--log-level',
  'error',
];

interface Answer {
  status: number;
  contentType: string;
  body: string;
}

async function send(url: string, { name, request, body }: Recorded): Promise<Answer> {
  const [method, path] = request.split(' ');
  const contentType: Record<string, string> =
    name === 'no content type'
      ? {}
      : { 'Content-Type': name === 'content type text' ? 'text/plain' : 'application/json' };
  const text = body === null ? undefined : typeof body === 'string' ? body : JSON.stringify(body);
  // A Buffer, because fetch adds a content type to a string.
  const response = await fetch(url + path, {
    method,
    headers: contentType,
    body: text === undefined ? undefined : Buffer.from(text),
  });
  return {
    status: response.status,
    contentType: response.headers.get('content-type') ?? '',
    body: await response.text(),
  };
}

/** Returns the differences of one exchange. */
function compare(recorded: Recorded, answer: Answer): Found[] {
  const found = (path: string, theirs: string, ours: string): Found => ({ name: recorded.name, path, theirs, ours });
  if (recorded.status !== answer.status)
    return [found('status', String(recorded.status), `${answer.status}${codeOf(answer.body)}`)];
  const contentType = recorded.headers['content-type'] ?? '';
  if (isCutOff(recorded)) return [];
  const results: Found[] =
    contentType === answer.contentType ? [] : [found('content type', contentType, answer.contentType)];
  const pairs = differences(shapeOf(readBody(recorded.response)), shapeOf(readBody(answer.body)));
  return [...results, ...pairs.map(({ path, theirs, ours }) => found(path === '' ? 'body' : path, theirs, ours))];
}

/** Only the start of one long response was recorded. */
function isCutOff({ headers, response }: Recorded): boolean {
  return headers['content-type'] === 'application/json' && typeof readBody(response) === 'string';
}

function codeOf(body: string): string {
  const code = /"code":"?(\w+)/.exec(body)?.[1];
  return code === undefined ? '' : ` ${code}`;
}

/** Parses JSON, or a stream into the list of its chunks. */
function readBody(text: string): unknown {
  if (text.startsWith('data: '))
    return {
      chunks: text
        .split('\n\n')
        .filter((event) => event.startsWith('data: '))
        .map((event) => (event === 'data: [DONE]' ? '[DONE]' : (JSON.parse(event.slice(6)) as unknown))),
    };
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

export async function compareAll(url: string): Promise<Found[]> {
  const found: Found[] = [];
  for (const recorded of RECORDED) found.push(...compare(recorded, await send(url, recorded)));
  return found;
}

/** Renders one row for all exchanges with the same difference and reason. */
function renderTable(found: readonly Found[]): string {
  const rows = new Map<string, { found: Found; names: string[] }>();
  for (const one of found) {
    const key = JSON.stringify([one.path, one.theirs, one.ours, verdictOf(one)]);
    const row = rows.get(key) ?? { found: one, names: [] };
    row.names.push(one.name);
    rows.set(key, row);
  }
  const numEqual = RECORDED.length - new Set(found.map(({ name }) => name)).size;
  const lines = [...rows.values()]
    .sort((a, b) => b.names.length - a.names.length)
    .map(({ found: { path, theirs, ours }, names }) => {
      const shown =
        names.length <= 4 ? names.join('; ') : `${names.slice(0, 3).join('; ')} and ${names.length - 3} more`;
      return `| \`${path}\` | ${theirs} | ${ours} | ${shown} | ${verdictOf(found.find((one) => one.path === path && one.theirs === theirs && one.ours === ours && names.includes(one.name))!) ?? '**undecided**'} |`;
    });
  return `# Responses compared with vLLM 0.32

\`wire.ts\` sends the ${RECORDED.length} requests of \`wire-vllm-0.32.json\` to \`capstan serve ${SERVE_ARGS.join(' ')}\`.
It compares status, content type, keys and kinds of values. Values are not compared, because the models differ.
${numEqual} exchanges have no difference. The others have ${rows.size} kinds of difference. The test fails if a difference has no reason.

| where | vLLM 0.32 | Capstan | exchanges | reason |
|---|---|---|---|---|
${lines.join('\n')}
`;
}

if (require.main === module) {
  const { values } = parseArgs({
    options: { transport: { type: 'string', default: 'auto' }, write: { type: 'string' } },
  });
  void (async () => {
    prepare();
    const server = await startServer([...SERVE_ARGS, '--http-transport', values.transport], {});
    const found = await compareAll(server.url);
    if (values.write !== undefined) writeFileSync(values.write, renderTable(found));
    const undecided = found.filter((one) => verdictOf(one) === undefined);
    for (const { name, path, theirs, ours } of undecided) console.log(`${name}: ${path}: ${theirs} -> ${ours}`);
    console.log(`${found.length} differences, ${undecided.length} undecided`);
    process.exitCode = undecided.length === 0 ? 0 : 1;
  })().finally(killAll);
}
