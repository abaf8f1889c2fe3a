/** One member of the outermost object: its key and where its value's text lies. */
export interface JsonMember {
  key: string;
  start: number;
  end: number;
}

type Expectation = 'value' | 'firstValue' | 'key' | 'firstKey' | 'colon' | 'comma' | 'nothing';

const MAX_DEPTH = 256;
const MAX_SCALAR = 400;
const BLANK = /[ \t\n\r]/;
const SCALAR = /[-+.0-9A-Za-z]/;
const SCALAR_TEXT = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)$/;
const ESCAPED = '"\\/bfnrtu';

/**
 * Reads one JSON object character by character, as strictly as JSON.parse: a fault shows at the character that makes it, and text that
 * follows the object is the reader's affair. Positions are indexes into the text read.
 */
export class JsonScanner {
  /** Of the outermost object, as far as read. */
  readonly members: JsonMember[] = [];
  #expects: Expectation = 'value';
  readonly #open: ('{' | '[')[] = [];
  #position = 0;
  #reads: 'string' | 'scalar' | 'structure' = 'structure';
  /** Text of the scalar or outermost key being read; of other strings, nothing is kept. NOTE: only ever appended to until its end, or each look would copy it. */
  #token = '';
  /** Inside a string: 'escape' after a backslash, else the hex digits that an escape still wants. */
  #escape: 'escape' | number = 0;
  #valueStart = 0;
  #isInMember = false;

  get isComplete(): boolean {
    return this.#expects === 'nothing';
  }

  /** Of the member of the outermost object whose value has begun and not ended. NOTE: a number ends at the character behind it. */
  get openKey(): string | undefined {
    return this.#isInMember ? this.members[this.members.length - 1].key : undefined;
  }

  /** Takes the next character; false if no JSON object goes on like this. */
  push(char: string): boolean {
    const isGood = this.#take(char);
    this.#position += char.length;
    return isGood;
  }

  #take(char: string): boolean {
    if (this.#reads === 'string') return this.#takeInString(char);
    if (this.#reads === 'scalar') {
      if (SCALAR.test(char)) {
        this.#token += char;
        return this.#token.length <= MAX_SCALAR;
      }
      if (!SCALAR_TEXT.test(this.#token)) return false;
      this.#reads = 'structure';
      this.#endValue(this.#position);
    }
    return BLANK.test(char) || this.#takeStructure(char);
  }

  #takeInString(char: string): boolean {
    if (this.#isOutermostKey()) this.#token += char;
    if (this.#escape === 'escape') {
      this.#escape = char === 'u' ? 4 : 0;
      return ESCAPED.includes(char);
    }
    if (this.#escape > 0) {
      this.#escape--;
      return /[0-9a-fA-F]/.test(char);
    }
    if (char === '\\') this.#escape = 'escape';
    else if (char === '"') this.#endString();
    return char >= ' ';
  }

  #endString(): void {
    this.#reads = 'structure';
    if (this.#isOutermostKey()) this.members.push({ key: JSON.parse(this.#token) as string, start: 0, end: 0 });
    if (this.#expects !== 'key' && this.#expects !== 'firstKey') return this.#endValue(this.#position + 1);
    this.#expects = 'colon';
  }

  #isOutermostKey(): boolean {
    return this.#open.length === 1 && (this.#expects === 'key' || this.#expects === 'firstKey');
  }

  #takeStructure(char: string): boolean {
    switch (this.#expects) {
      case 'colon':
        this.#expects = 'value';
        return char === ':';
      case 'comma':
        return this.#takeAfterValue(char);
      case 'firstKey':
      case 'key':
        if (char === '}' && this.#expects === 'firstKey') return this.#close(char);
        return char === '"' && this.#startToken(char);
      case 'firstValue':
      case 'value':
        if (char === ']' && this.#expects === 'firstValue') return this.#close(char);
        return this.#startValue(char);
      case 'nothing':
        return false;
    }
  }

  #takeAfterValue(char: string): boolean {
    if (char !== ',') return this.#close(char);
    this.#expects = this.#open.at(-1) === '{' ? 'key' : 'value';
    return true;
  }

  #startValue(char: string): boolean {
    if (this.#open.length === 0 && char !== '{') return false;
    if (this.#open.length === 1) {
      this.#valueStart = this.#position;
      this.#isInMember = true;
    }
    if (char === '{' || char === '[') {
      this.#open.push(char);
      this.#expects = char === '{' ? 'firstKey' : 'firstValue';
      return this.#open.length <= MAX_DEPTH;
    }
    return (char === '"' || SCALAR.test(char)) && this.#startToken(char);
  }

  #startToken(char: string): boolean {
    this.#reads = char === '"' ? 'string' : 'scalar';
    this.#token = char;
    return true;
  }

  #close(char: string): boolean {
    if (this.#open.pop() !== (char === '}' ? '{' : char === ']' ? '[' : undefined)) return false;
    this.#endValue(this.#position + 1);
    return true;
  }

  #endValue(end: number): void {
    if (this.#open.length === 1) {
      Object.assign(this.members[this.members.length - 1], { start: this.#valueStart, end });
      this.#isInMember = false;
    }
    this.#expects = this.#open.length === 0 ? 'nothing' : 'comma';
  }
}
