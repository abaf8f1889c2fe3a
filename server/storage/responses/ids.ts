import { randomBytes } from 'node:crypto';

const RESPONSE_ID = /^resp_[0-9a-f]{48}$/;
const COMPLETION_ID = /^chatcmpl-[0-9a-f]{48}$/;
const ITEM_ID = /^[a-z]{2,4}_([0-9a-f]{48})[0-9a-f]{4}$/;

/** Prefixes of the ids of items, as OpenAI has them. */
const PREFIXES = { message: 'msg', reasoning: 'rs', function_call: 'fc', custom_tool_call: 'ctc' } as const;

export function newResponseId(): string {
  return `resp_${randomBytes(24).toString('hex')}`;
}

export function isResponseId(text: string): boolean {
  return RESPONSE_ID.test(text);
}

/** The time in microseconds of the newest completion id. */
let lastTime = 0;

/** Returns an id that sorts after all earlier ones of this process, and by time after those of others. */
export function newCompletionId(): string {
  lastTime = Math.max(lastTime + 1, Date.now() * 1000);
  return `chatcmpl-${lastTime.toString(16).padStart(14, '0')}${randomBytes(17).toString('hex')}`;
}

export function isCompletionId(text: string): boolean {
  return COMPLETION_ID.test(text);
}

/** Returns the id of an output item. It contains the id of its response. */
export function outputItemId(type: keyof typeof PREFIXES, responseId: string, index: number): string {
  return `${PREFIXES[type]}_${responseId.slice('resp_'.length)}${index.toString(16).padStart(4, '0')}`;
}

/** Returns the id of the response that an output item belongs to. Undefined for an id of another form. */
export function responseIdOf(itemId: string): string | undefined {
  const [, hex] = ITEM_ID.exec(itemId) ?? [];
  return hex === undefined ? undefined : `resp_${hex}`;
}
