import { behaveAsPython, type Scope, type Value } from './jinja-runtime';
import { STRING_METHODS } from './jinja-strings';
import { OWN_PREFIX, rewriteForPython } from './jinja-syntax';

/** What this class uses of `@huggingface/jinja`. */
interface Library {
  Environment: new (parent?: Scope) => Scope;
  Interpreter: new (scope: Scope) => { run(program: unknown): Value };
  Template: new (source: string) => { parsed: unknown; render(variables: object): string };
}

/** The limit of Python's sandbox. */
const MAX_RANGE = 100_000;

/**
 * A Jinja template that renders as in Python. `@huggingface/jinja` differs from Python in what real templates use:
 * methods of strings, the text of values, undefined values, and filters. Its syntax tree is rewritten and its
 * interpreter is extended accordingly.
 */
export class JinjaTemplate {
  readonly #library: Library;
  readonly #program: unknown;

  private constructor(library: Library, program: unknown) {
    this.#library = library;
    this.#program = program;
  }

  /** Rejects with an Error for an invalid template. */
  static async compile(source: string): Promise<JinjaTemplate> {
    const library = (await import('@huggingface/jinja')) as unknown as Library;
    const { parsed } = new library.Template(source);
    rewriteForPython(parsed);
    return new JinjaTemplate(library, parsed);
  }

  /** @throws Error from `raise_exception` in the template, or for an operation that Jinja refuses. */
  render(variables: Record<string, unknown>): string {
    const { Environment, Interpreter, Template } = this.#library;
    const scope = new Environment();
    const strftimeNow = (format: string) => new Template('{{ strftime_now(format) }}').render({ format });
    // A variable hides a global of the same name, as in Jinja.
    const values = { ...GLOBALS, strftime_now: strftimeNow, ...variables, ...METHODS };
    for (const [name, value] of Object.entries(values)) scope.set(name, value);
    const interpreter = new Interpreter(scope);
    const temporary = new Environment();
    behaveAsPython(
      interpreter,
      (parent) => new Environment(parent),
      (value) => {
        temporary.variables.clear();
        return temporary.set('value', value);
      },
    );
    return interpreter.run(this.#program).value as string;
  }
}

const METHODS = Object.fromEntries(Object.entries(STRING_METHODS).map(([name, method]) => [OWN_PREFIX + name, method]));

const GLOBALS = {
  true: true,
  false: false,
  none: null,
  True: true,
  False: false,
  None: null,
  raise_exception: (message: string) => {
    throw new Error(message);
  },
  range,
};

function range(first: number, end?: number, step = 1): number[] {
  const [start, stop] = end === undefined ? [0, first] : [first, end];
  const length = Math.max(0, Math.ceil((stop - start) / step));
  if (step === 0 || !(length <= MAX_RANGE)) throw new Error(`range() supports up to ${MAX_RANGE} numbers`);
  return Array.from({ length }, (_, i) => start + i * step);
}
