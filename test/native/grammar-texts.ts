/** Random texts that a grammar accepts, made by walking its automaton, and mutations of them. */
import type { NativeGrammar } from '../../ts/addon-types';

/** Returns whether the grammar accepts the complete text. */
export function accepts(grammar: NativeGrammar, text: string): boolean {
  const matcher = grammar.matcher();
  return matcher.accept(Buffer.from(text)) && matcher.canEnd();
}

/** Returns a small random generator, so that a seed identifies a text. */
export function randomFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/**
 * Returns a random text that begins with `prefix` and that the grammar accepts. Each byte is any byte that may come
 * next, or sometimes one on the shortest way to the end. After `maxBytes` all bytes are on the shortest way.
 */
export function randomText(grammar: NativeGrammar, seed: number, maxBytes = 80, prefix = ''): string {
  const random = randomFrom(seed * 7919 + 17);
  const matcher = grammar.matcher();
  const bytes: number[] = [...Buffer.from(prefix)];
  if (!matcher.accept(Buffer.from(prefix))) throw new Error(`the prefix is refused: ${prefix}`);
  while (!(matcher.canEnd() && (bytes.length >= maxBytes || random(3) === 0 || matcher.nextBytes().length === 0))) {
    const isClosing = bytes.length >= maxBytes || random(5) === 0;
    const next = isClosing ? matcher.closingBytes() : matcher.nextBytes();
    // Prefers ASCII, because random multi-byte characters rarely lead further.
    const plain = next.filter((byte) => byte < 0x80);
    const from = plain.length > 0 && random(4) > 0 ? plain : next;
    const byte = from[random(from.length)];
    if (!matcher.accept(Uint8Array.of(byte)))
      throw new Error(`byte ${byte} is refused after ${Buffer.from(bytes).toString()}`);
    bytes.push(byte);
  }
  return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes));
}

/** Returns the text with one character removed, inserted or replaced. */
export function mutate(text: string, seed: number): string {
  const random = randomFrom(seed * 104_729 + 5);
  const characters = [...text];
  const alphabet = [...'{}[]",:.-+0159aeE\\ \n', 'é', 'true'];
  const at = random(characters.length + 1);
  characters.splice(at, random(2), ...(random(3) === 0 ? [] : [alphabet[random(alphabet.length)]]));
  return characters.join('');
}
