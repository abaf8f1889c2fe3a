import type { Engine, TokenLogprob } from '../../../ts';

/** Stands for minus infinity, which JSON cannot express. */
const LEAST_LOGPROB = -9999;

/** Spells tokens for log-probabilities. */
export class TokenWords {
  readonly #engine: Pick<Engine, 'tokenBytes'>;
  readonly #asIds: boolean;

  /** @param asIds Spell tokens as `token_id:7`, because several tokens may have the same text. */
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

  /** Returns the text of a token. Incomplete characters become U+FFFD. */
  text(tokenId: number): string {
    return Buffer.from(this.bytes(tokenId)).toString('utf8');
  }
}

/** Returns `choices[].logprobs` of a chat completion. */
export function chatLogprobs(logprobs: readonly TokenLogprob[], words: TokenWords): object {
  return { content: tokenLogprobs(logprobs, words) };
}

/** Returns each token with its log-probability and those of the alternatives. */
export function tokenLogprobs(logprobs: readonly TokenLogprob[], words: TokenWords): object[] {
  const entry = ({ tokenId, logprob }: { tokenId: number; logprob: number }) => ({
    token: words.word(tokenId),
    logprob: finite(logprob),
    bytes: [...words.bytes(tokenId)],
  });
  return logprobs.map((token) => ({ ...entry(token), top_logprobs: token.topLogprobs.map(entry) }));
}

/**
 * Returns `prompt_logprobs`: per prompt token, the token and the most likely alternatives by id. The first entry is
 * null.
 */
export function promptLogprobs(tokens: readonly (TokenLogprob | null)[], words: TokenWords): (object | null)[] {
  return tokens.map((token) => {
    if (token === null) return null;
    const entries = new Map([
      [token.tokenId, { logprob: token.logprob, rank: token.rank }],
      ...token.topLogprobs.map(({ tokenId, logprob }, i) => [tokenId, { logprob, rank: i + 1 }] as const),
    ]);
    return Object.fromEntries(
      [...entries].map(([tokenId, { logprob, rank }]) => [
        tokenId,
        { logprob: finite(logprob), rank, decoded_token: words.text(tokenId) },
      ]),
    );
  });
}

/** A token of a completion. The first token of a prompt has no log-probability. */
type CompletionToken = TokenLogprob | { tokenId: number; logprob: null };

/** A token and the offset of its text, in characters. */
export interface PlacedToken {
  token: CompletionToken;
  offset: number;
}

/** Returns `choices[].logprobs` of a text completion. The alternatives include the token itself. */
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

/** Finds where tokens begin in their text, in characters (code points, as Python counts them). */
export class TextOffsets {
  readonly #words: TokenWords;
  #numChars: number;

  constructor(words: TokenWords, numCharsBefore = 0) {
    this.#words = words;
    this.#numChars = numCharsBefore;
  }

  /** Characters of the text so far. */
  get numChars(): number {
    return this.#numChars;
  }

  /**
   * Returns the offset of the next token. A token that begins inside a character has the offset of that character.
   * Tokens outside the text do not move the offset.
   */
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
