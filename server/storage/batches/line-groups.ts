/** The lines of a batch that name one model. They run in order, and pause together. */
export class LineGroup {
  readonly model: string | undefined;
  /** No line is taken before this time, in milliseconds. */
  pausedUntil = 0;
  #lines: number[] = [];
  #next = 0;
  /** They run after the others. */
  #putBack: number[] = [];

  constructor(model: string | undefined) {
    this.model = model;
  }

  add(index: number): void {
    this.#lines.push(index);
  }

  /** The next line. Undefined if none waits. */
  peek(): number | undefined {
    if (this.#next === this.#lines.length) {
      this.#lines = this.#putBack;
      this.#next = 0;
      this.#putBack = [];
    }
    return this.#lines[this.#next];
  }

  /** Takes the line that `peek` returned. */
  take(): void {
    this.#next++;
  }

  putBack(index: number): void {
    this.#putBack.push(index);
  }
}

/** The lines of a batch that wait, by the model that they name. */
export class LineGroups {
  /** The first is next. */
  readonly #inTurn: LineGroup[] = [];
  readonly #byModel = new Map<string | undefined, LineGroup>();

  add(index: number, model: string | undefined): void {
    let group = this.#byModel.get(model);
    if (group === undefined) {
      group = new LineGroup(model);
      this.#byModel.set(model, group);
      this.#inTurn.push(group);
    }
    group.add(index);
  }

  get all(): readonly LineGroup[] {
    return this.#inTurn;
  }

  /** Takes a line of a group, which has its next turn after all others. */
  take(group: LineGroup): void {
    group.take();
    this.#inTurn.splice(this.#inTurn.indexOf(group), 1);
    this.#inTurn.push(group);
  }
}
