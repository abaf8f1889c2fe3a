export type Values = Readonly<Record<string, string | number>>;

/** Replaces placeholders such as `{name}`. In `{n} line|{n} lines`, the first form is used if `n` is 1. */
export function fill(message: string, values: Values = {}): string {
  const [one, many = one] = message.split('|');
  return (values.n === 1 ? one : many).replace(/\{(\w+)\}/g, (whole, name: string) =>
    Object.hasOwn(values, name) ? String(values[name]) : whole,
  );
}
