export type Values = Readonly<Record<string, string | number>>;

/** Puts values in their places: `{name}`. Of `{n} line|{n} lines` the first part is for one. */
export function fill(message: string, values: Values = {}): string {
  const [one, many = one] = message.split('|');
  return (values.n === 1 ? one : many).replace(/\{(\w+)\}/g, (whole, name: string) =>
    Object.hasOwn(values, name) ? String(values[name]) : whole,
  );
}
