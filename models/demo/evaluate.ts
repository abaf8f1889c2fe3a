/**
 * Answers heldout.jsonl with our own engine, greedily, and prints the accuracy per skill; fails if one is below 90 %.
 * Questions that are worded unlike the corpus have no such aim.
 *
 *     node -r ./test/oracle/register-ts.cjs models/demo/evaluate.ts [--wrong]
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { type ChatMessage, type Choice, Engine, type Tool } from '../../ts/index';

interface Case {
  skill: string;
  judge: 'text' | 'json' | 'tools';
  messages: ChatMessage[];
  tools: Tool[];
  /** The text of the answer; for tools the calls. */
  expected: string | { name: string; arguments: object }[];
}

const AIM = 0.9;
const AT_ONCE = 16;

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** What the answer says, as the case's judge sees it: a text, a JSON value or a list of calls. */
function said(judge: Case['judge'], { text, toolCalls }: Choice): unknown {
  if (judge === 'tools') return toolCalls.map((call) => ({ name: call.name, arguments: parsed(call.arguments) }));
  if (toolCalls.length > 0) return toolCalls;
  return judge === 'json' ? parsed(text) : text.trim();
}

async function main() {
  const cases = readFileSync(join(__dirname, 'heldout.jsonl'), 'utf8').trim().split('\n').map((line) => JSON.parse(line) as Case);
  const engine = await Engine.load('demo');
  const scores = new Map<string, { right: number; of: number }>();
  const waiting = [...cases];
  async function work() {
    for (let one = waiting.shift(); one !== undefined; one = waiting.shift()) {
      const tools = one.tools.length > 0 ? one.tools : undefined;
      const { choices: [choice] } = await engine.chat(one.messages, { tools, temperature: 0 }).result();
      const isRight = isDeepStrictEqual(said(one.judge, choice), one.judge === 'json' ? parsed(one.expected as string) : one.expected);
      const score = scores.get(one.skill) ?? { right: 0, of: 0 };
      scores.set(one.skill, { right: score.right + Number(isRight), of: score.of + 1 });
      if (!isRight && process.argv.includes('--wrong')) console.log(one.skill, [one.messages.at(-1)?.content, one.expected, choice.text, choice.toolCalls]);
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  await engine.close();
  for (const [skill, { right, of }] of scores) {
    console.log(`| ${skill} | ${right} / ${of} | ${((100 * right) / of).toFixed(1)} % |`);
    if (right < AIM * of && !skill.startsWith('reworded')) process.exitCode = 1;
  }
}

void main();
