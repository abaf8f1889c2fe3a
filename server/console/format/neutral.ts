/**
 * Text of strangers (log lines, model output, headers, names) as it may be shown: terminal escapes are gone, control characters that could
 * hide or reorder what follows are visible. Nothing here makes HTML safe; it goes to the page as text alone.
 */
export function neutralise(text: string): string {
  return text.replace(ANSI, '').replace(CONTROL, visible);
}

/** CSI, OSC and other escape sequences, of both the 7 and the 8 bit kind. */
const ANSI =
  /(?:\u001b\[|\u009b)[0-?]*[ -/]*[@-~]|(?:\u001b\]|\u009d)[^\u0007\u001b\u009c]*(?:\u0007|\u001b\\|\u009c)?|\u001b[PX^_][^\u001b]*(?:\u001b\\)?|\u001b[ -/]*[0-~]/g;
/** Control characters but tab and line feed; bidirectional marks, embeddings, overrides and isolates; line and paragraph separators; what is invisible. */
const CONTROL =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]|\p{Cs}/gu;

function visible(character: string): string {
  const code = character.codePointAt(0) as number;
  if (code < 0x20) return code === 0x0d ? '' : String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? '\u2421' : `<U+${code.toString(16).toUpperCase().padStart(4, '0')}>`;
}
