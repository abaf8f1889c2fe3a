/** Texts for and against a grammar, drawn by walking its automaton. */
import type { NativeGrammar } from '../../ts/addon-types';

export function accepts(grammar: NativeGrammar, text: string): boolean {
  const matcher = grammar.matcher();
  return matcher.accept(Buffer.from(text)) && matcher.canEnd();
}

/** A small generator whose seeds name their texts. */
export function randomFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** A text of the grammar: any byte that may come next, now and then one on the shortest way out, and only those after `maxBytes`. */
export function randomText(grammar: NativeGrammar, seed: number, maxBytes = 80): string {
  const random = randomFrom(seed * 7919 + 17);
  const matcher = grammar.matcher();
  const bytes: number[] = [];
  while (!(matcher.canEnd() && (bytes.length >= maxBytes || random(3) === 0 || matcher.nextBytes().length === 0))) {
    const isClosing = bytes.length >= maxBytes || random(5) === 0;
    const next = isClosing ? matcher.closingBytes() : matcher.nextBytes();
    // Printable bytes make texts that go further than those that begin a character of four bytes.
    const plain = next.filter((byte) => byte < 0x80);
    const from = plain.length > 0 && random(4) > 0 ? plain : next;
    const byte = from[random(from.length)];
    if (!matcher.accept(Uint8Array.of(byte)))
      throw new Error(`byte ${byte} is refused after ${Buffer.from(bytes).toString()}`);
    bytes.push(byte);
  }
  return new TextDecoder('utf-8', { fatal: true }).decode(Uint8Array.from(bytes));
}

/** The text with one character left out, put in or changed. */
export function mutate(text: string, seed: number): string {
  const random = randomFrom(seed * 104_729 + 5);
  const characters = [...text];
  const alphabet = [...'{}[]",:.-+0159aeE\\ \n', 'é', 'true'];
  const at = random(characters.length + 1);
  characters.splice(at, random(2), ...(random(3) === 0 ? [] : [alphabet[random(alphabet.length)]]));
  return characters.join('');
}
