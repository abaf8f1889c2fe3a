/** Styles of text on a terminal. Without one they do nothing. */
export interface Style {
  bold: (text: string) => string;
  dim: (text: string) => string;
}

/** @param isTerminal Whether the text goes to a terminal. `NO_COLOR` and `TERM=dumb` turn styles off. */
export function styleFor(isTerminal: boolean, env: NodeJS.ProcessEnv): Style {
  const isOn = isTerminal && (env.NO_COLOR ?? '') === '' && env.TERM !== 'dumb';
  const wrap = (code: number) => (text: string) => (isOn ? `\x1b[${code}m${text}\x1b[0m` : text);
  return { bold: wrap(1), dim: wrap(2) };
}

/** Removes what a terminal would obey: control characters other than line breaks and tabs. */
export function printable(text: string): string {
  return text.replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, '');
}
