export const [START, CHANNEL, MESSAGE, CONSTRAIN] = ['<|start|>', '<|channel|>', '<|message|>', '<|constrain|>'];
/** What precedes each message of the model but the first, which the prompt begins. */
export const NEXT_MESSAGE = `${START}assistant`;
const RECIPIENT = 'to=';
/** What a header may begin with, after blanks. */
const BEGINNINGS = [NEXT_MESSAGE, CHANNEL, RECIPIENT, `commentary${CHANNEL}`];
const MARKERS = [CHANNEL, CONSTRAIN, MESSAGE];
const MAX_CHARS = 300;
const MAX_PARTS = 12;

/**
 * Reads the header of a Harmony message, character by character, up to `<|message|>`: markers and words, with blanks
 * anywhere between them. The last channel and the first recipient count.
 */
export class HarmonyHeader {
  /** The header so far. */
  text = '';
  channel: string | undefined;
  recipient: string | undefined;
  isComplete = false;
  /** What the header begins with, so far. */
  #beginning = '';
  #hasBegun = false;
  /** A marker or a word so far. */
  #part = '';
  #numParts = 0;
  #isChannelNext = false;

  /** Returns false if the text is not a header. */
  push(char: string): boolean {
    this.text += char;
    if (this.text.length > MAX_CHARS || (!this.#hasBegun && !this.#begin(char))) return false;
    if (this.#part.startsWith('<')) return this.#takeMarker(char);
    if (char === '<') return this.#endWord() && this.#takeMarker(char);
    if (isBlank(char)) return this.#endWord();
    this.#part += char;
    return true;
  }

  #begin(char: string): boolean {
    if (this.#beginning === '' && isBlank(char)) return true;
    this.#beginning += char;
    this.#hasBegun = BEGINNINGS.includes(this.#beginning);
    return BEGINNINGS.some((beginning) => beginning.startsWith(this.#beginning));
  }

  #takeMarker(char: string): boolean {
    this.#part += char;
    const marker = this.#part;
    const allowed = this.#numParts === 0 ? [NEXT_MESSAGE, ...MARKERS] : MARKERS;
    if (!allowed.includes(marker)) return allowed.some((other) => other.startsWith(marker));
    this.#isChannelNext = marker === CHANNEL;
    this.isComplete = marker === MESSAGE;
    return this.#endPart();
  }

  #endWord(): boolean {
    const word = this.#part;
    if (word === '') return true;
    if (word.startsWith(RECIPIENT)) {
      this.recipient ??= word.slice(RECIPIENT.length);
    } else if (this.#isChannelNext) {
      this.channel = word;
      this.#isChannelNext = false;
    }
    return this.#endPart();
  }

  #endPart(): boolean {
    this.#part = '';
    return ++this.#numParts <= MAX_PARTS;
  }
}

function isBlank(char: string): boolean {
  return char.trim() === '';
}
