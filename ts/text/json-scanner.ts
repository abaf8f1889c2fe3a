/** One member of the outermost object: its key and the range of its value's text. */
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
 * Scans one JSON object character by character, as strictly as JSON.parse. An error is reported at the first invalid
 * character. The caller must stop at the end of the object. Positions are indexes into the scanned text.
 */
export class JsonScanner {
  /** Members of the outermost object that have been scanned. */
  readonly members: JsonMember[] = [];
  #expects: Expectation = 'value';
  readonly #open: ('{' | '[')[] = [];
  #position = 0;
  #reads: 'string' | 'scalar' | 'structure' = 'structure';
  /**
   * Text of the current scalar or outermost key; other strings are not kept. NOTE: only append to it, reading it
   * copies.
   */
  #token = '';
  /** Inside a string: 'escape' after a backslash, else the number of hex digits that an escape still needs. */
  #escape: 'escape' | number = 0;
  #valueStart = 0;
  #isInMember = false;

  get isComplete(): boolean {
    return this.#expects === 'nothing';
  }

  /** Key of the member whose value has started but not ended. NOTE: a number ends at the character after it. */
  get openKey(): string | undefined {
    return this.#isInMember ? this.members[this.members.length - 1].key : undefined;
  }

  /** Scans the next character. Returns false if it is invalid at this position. */
  push(char: string): boolean {
    const isValid = this.#take(char);
    this.#position += char.length;
    return isValid;
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
    const opening = this.#open.pop();
    const isMatch = (opening === '{' && char === '}') || (opening === '[' && char === ']');
    if (isMatch) this.#endValue(this.#position + 1);
    return isMatch;
  }

  #endValue(end: number): void {
    if (this.#open.length === 1) {
      Object.assign(this.members[this.members.length - 1], { start: this.#valueStart, end });
      this.#isInMember = false;
    }
    this.#expects = this.#open.length === 0 ? 'nothing' : 'comma';
  }
}
