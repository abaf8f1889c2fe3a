/** What a terminal would take for an order: control characters but the tab, and those that turn the direction of text. */
const CONTROLS = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Text of strangers (log lines, names) as one line that does nothing to a terminal. */
export function plain(text: string): string {
  return text.replace(CONTROLS, (character) => `\\x${character.codePointAt(0)!.toString(16).padStart(2, '0')}`);
}

/** `2030-01-31 12:00Z`, or a dash. */
export function minute(time: string | null): string {
  return time === null ? '-' : `${time.slice(0, 16).replace('T', ' ')}Z`;
}

export function megabytes(mb: number): string {
  return mb >= 1024 ? `${Number((mb / 1024).toFixed(1))} GiB` : `${mb} MiB`;
}

/** One `NAME  value` line each; what is undefined is left out. */
export function renderFields(fields: readonly (readonly [string, string | undefined])[]): string {
  const shown = fields.filter((field): field is [string, string] => field[1] !== undefined);
  const width = Math.max(...shown.map(([name]) => name.length));
  return shown.map(([name, value]) => `${name.padEnd(width)}  ${value}\n`).join('');
}
