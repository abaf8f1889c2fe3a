/** Answers heldout.jsonl with our own engine, greedily, and prints the accuracy per skill; fails if one is below 95 %. */
import { readFileSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import { Engine } from '../../ts/index'

interface Case { skill: string; judge: 'text' | 'json' | 'tools'; messages: any[]; tools: any[]; expected: any }

const AIM = 0.95
const cases: Case[] = readFileSync(new URL('heldout.jsonl', import.meta.url), 'utf8').trim().split('\n').map((line) => JSON.parse(line))

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

function isRight(one: Case, choice: any): boolean {
  const text = (choice.text ?? '').trim()
  if (one.judge === 'json') return isDeepStrictEqual(parsed(text), JSON.parse(one.expected))
  if (one.judge === 'text') return text === one.expected && !choice.toolCalls?.length
  const calls = (choice.toolCalls ?? []).map((call: any) => ({ name: call.name, arguments: parsed(call.arguments) }))
  return isDeepStrictEqual(calls, one.expected)
}

const engine = await Engine.load('demo')
const skills = new Map<string, { right: number; of: number }>()
await Promise.all(cases.map(async (one) => {
  const tools = one.tools.length > 0 ? one.tools : undefined
  const answer = await engine.chat(one.messages, { tools, temperature: 0, maxTokens: 300 }).result()
  const score = skills.get(one.skill) ?? { right: 0, of: 0 }
  skills.set(one.skill, { right: score.right + (isRight(one, answer.choices[0]) ? 1 : 0), of: score.of + 1 })
}))
await engine.close()

let passed = true
for (const [skill, { right, of }] of skills) {
  passed &&= right >= AIM * of
  console.log(`${skill.padEnd(12)} ${right}/${of} = ${((100 * right) / of).toFixed(1)} %`)
}
process.exitCode = passed ? 0 : 1
