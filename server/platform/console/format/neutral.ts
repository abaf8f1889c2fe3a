/**
 * Prepares untrusted text (log lines, model output, headers, names) for display. Removes terminal escapes and shows
 * control characters that could hide or reorder text. Does not escape HTML: the result must be inserted as text.
 */
export function neutralise(text: string): string {
  return text.replace(ANSI, '').replace(CONTROL, visible);
}

/** CSI, OSC and other escape sequences, in their 7-bit and 8-bit forms. */
const ANSI =
  /(?:\u001b\[|\u009b)[0-?]*[ -/]*[@-~]|(?:\u001b\]|\u009d)[^\u0007\u001b\u009c]*(?:\u0007|\u001b\\|\u009c)?|\u001b[PX^_][^\u001b]*(?:\u001b\\)?|\u001b[ -/]*[0-~]/g;
/** Control characters except tab and line feed, bidirectional controls, line separators, and invisible characters. */
const CONTROL =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]|\p{Cs}/gu;

function visible(character: string): string {
  const code = character.codePointAt(0) as number;
  if (code < 0x20) return code === 0x0d ? '' : String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? '\u2421' : `<U+${code.toString(16).toUpperCase().padStart(4, '0')}>`;
}
