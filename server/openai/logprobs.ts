import type { Engine, TokenLogprob } from '../../ts';

/** JSON has no infinity. */
const LEAST_LOGPROB = -9999;

/** How tokens are shown in log-probabilities. */
export class TokenWords {
  readonly #engine: Pick<Engine, 'tokenBytes'>;
  readonly #asIds: boolean;

  /** @param asIds Tokens as `token_id:7`, which no two share. */
  constructor(engine: Pick<Engine, 'tokenBytes'>, asIds = false) {
    this.#engine = engine;
    this.#asIds = asIds;
  }

  bytes(tokenId: number): Uint8Array {
    return this.#engine.tokenBytes(tokenId);
  }

  word(tokenId: number): string {
    return this.#asIds ? `token_id:${tokenId}` : this.text(tokenId);
  }

  /** Of a part of a character: U+FFFD. */
  text(tokenId: number): string {
    return Buffer.from(this.bytes(tokenId)).toString('utf8');
  }
}

/** `choices[].logprobs` of a chat. */
export function chatLogprobs(logprobs: readonly TokenLogprob[], words: TokenWords): object {
  const entry = ({ tokenId, logprob }: { tokenId: number; logprob: number }) => ({
    token: words.word(tokenId),
    logprob: finite(logprob),
    bytes: [...words.bytes(tokenId)],
  });
  return { content: logprobs.map((token) => ({ ...entry(token), top_logprobs: token.topLogprobs.map(entry) })) };
}

/** `prompt_logprobs`: per token its own and the most likely ones, by id; the first token has none. */
export function promptLogprobs(entries: readonly (TokenLogprob | null)[], words: TokenWords): (object | null)[] {
  return entries.map((entry) => {
    if (entry === null) return null;
    const shown = new Map([
      [entry.tokenId, { logprob: entry.logprob, rank: entry.rank }],
      ...entry.topLogprobs.map(({ tokenId, logprob }, i) => [tokenId, { logprob, rank: i + 1 }] as const),
    ]);
    return Object.fromEntries(
      [...shown].map(([tokenId, { logprob, rank }]) => [
        tokenId,
        { logprob: finite(logprob), rank, decoded_token: words.text(tokenId) },
      ]),
    );
  });
}

/** A token of a completion's log-probabilities; nothing is known of a prompt's first. */
type CompletionToken = TokenLogprob | { tokenId: number; logprob: null };

/** A token, and where it begins in the text, in characters. */
export interface PlacedToken {
  token: CompletionToken;
  offset: number;
}

/** `choices[].logprobs` of a completion. The token itself is among the alternatives. */
export function completionLogprobs(tokens: readonly PlacedToken[], numTop: number, words: TokenWords): object {
  return {
    text_offset: tokens.map(({ offset }) => offset),
    token_logprobs: tokens.map(({ token }) => (token.logprob === null ? null : finite(token.logprob))),
    tokens: tokens.map(({ token }) => words.word(token.tokenId)),
    top_logprobs: tokens.map(({ token }) => {
      if (token.logprob === null) return null;
      const top = token.topLogprobs.slice(0, numTop).filter(({ tokenId }) => tokenId !== token.tokenId);
      return Object.fromEntries([token, ...top].map(({ tokenId, logprob }) => [words.word(tokenId), finite(logprob)]));
    }),
  };
}

function finite(logprob: number): number {
  return Math.max(logprob, LEAST_LOGPROB);
}

/** Where tokens begin in the text that they spell, in characters (code points, as Python counts). */
export class TextOffsets {
  readonly #words: TokenWords;
  #numChars: number;

  constructor(words: TokenWords, numCharsBefore = 0) {
    this.#words = words;
    this.#numChars = numCharsBefore;
  }

  /** Of the text so far. */
  get numChars(): number {
    return this.#numChars;
  }

  /** A token that begins within a character begins where that does. Tokens that are left out of the text take no room. */
  next(tokenId: number, isInText: boolean): number {
    const bytes = this.#words.bytes(tokenId);
    const offset = bytes.length > 0 && isContinuation(bytes[0]) ? this.#numChars - 1 : this.#numChars;
    if (isInText) for (const byte of bytes) if (!isContinuation(byte)) this.#numChars++;
    return Math.max(offset, 0);
  }
}

function isContinuation(byte: number): boolean {
  return (byte & 0xc0) === 0x80;
}
