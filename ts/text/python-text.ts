/** A value of a template. */
interface Value {
  type: string;
  value: unknown;
}

/** Returns `str(value)` of Python. */
export function pythonText({ type, value }: Value): string {
  switch (type) {
    case 'StringValue':
    case 'IntegerValue':
      return String(value);
    case 'FloatValue':
      return floatText(value as number);
    case 'BooleanValue':
      return value === true ? 'True' : 'False';
    case 'NullValue':
      return 'None';
    case 'UndefinedValue':
      return '';
    case 'ArrayValue':
      return `[${items(value)}]`;
    case 'TupleValue':
      return `(${items(value)}${(value as unknown[]).length === 1 ? ',' : ''})`;
    case 'ObjectValue':
    case 'NamespaceValue':
      return `{${[...(value as Map<string, Value>)].map(([key, item]) => `${quoted(key)}: ${repr(item)}`).join(', ')}}`;
    default:
      throw new Error(`Cannot print a value of type ${type}`);
  }
}

/** Spelling of the constants in {@link spacedText}. */
interface Constants {
  true: string;
  false: string;
  null: string;
}

/** Returns a JSON value as `json.dumps` of Python writes it, or with other constants. */
export function spacedText(value: unknown, constants: Constants): string {
  if (typeof value === 'boolean') return value ? constants.true : constants.false;
  if (value === null || value === undefined) return constants.null;
  if (typeof value !== 'object') return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map((item) => spacedText(item, constants)).join(', ')}]`;
  const members = Object.entries(value).filter(([, item]) => item !== undefined);
  return `{${members.map(([key, item]) => `${JSON.stringify(key)}: ${spacedText(item, constants)}`).join(', ')}}`;
}

function repr(value: Value): string {
  return value.type === 'StringValue' ? quoted(value.value as string) : pythonText(value);
}

function items(values: unknown): string {
  return (values as readonly Value[]).map(repr).join(', ');
}

function floatText(value: number): string {
  if (Object.is(value, -0)) return '-0.0';
  const text = Number.isInteger(value) && Math.abs(value) < 1e16 ? value.toFixed(1) : String(value);
  return text.replace(/e([-+])(\d)$/, 'e$10$2');
}

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  return quote + text.replace(/[\\'"\p{C}\p{Z}]/gu, (char) => escaped(char, quote)) + quote;
}

const ESCAPES: Readonly<Record<string, string>> = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' };

function escaped(char: string, quote: string): string {
  if (char === "'" || char === '"') return char === quote ? `\\${char}` : char;
  if (char === ' ') return char;
  const code = char.codePointAt(0)!;
  const [kind, digits] = HEX_ESCAPES.find(([, , end]) => code < end)!;
  return ESCAPES[char] ?? `\\${kind}${code.toString(16).padStart(digits, '0')}`;
}

const HEX_ESCAPES: readonly [kind: string, digits: number, end: number][] = [
  ['x', 2, 0x100],
  ['u', 4, 0x10000],
  ['U', 8, 0x110000],
];
