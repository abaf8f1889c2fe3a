const HOUR = '(?:[01]\\d|2[0-3])';
const SIXTY = '[0-5]\\d';
const DATE =
  '(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))' +
  '|(?:\\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)';
const TIME = `${HOUR}:${SIXTY}:${SIXTY}(?:\\.\\d{1,9})?(?:Z|[+-]${HOUR}:${SIXTY})`;
const OCTET = '(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)';
const LABEL = '[A-Za-z0-9](?:[A-Za-z0-9-]{0,22}[A-Za-z0-9])?';
const HOSTNAME = `${LABEL}(?:\\.${LABEL}){0,3}`;
const ATOM = '[A-Za-z0-9_+-]';
/** RFC 3339, appendix A: units follow each other without gaps, and seconds have no fraction. */
const COUNT = '\\d{1,18}';
const CLOCK = `(?:${COUNT}H(?:${COUNT}M(?:${COUNT}S)?)?|${COUNT}M(?:${COUNT}S)?|${COUNT}S)`;
const CALENDAR = `(?:${COUNT}Y(?:${COUNT}M(?:${COUNT}D)?)?|${COUNT}M(?:${COUNT}D)?|${COUNT}D)`;

/** Eight groups, or up to seven groups and one `::`. */
function ipv6(): string {
  const group = '[0-9a-fA-F]{1,4}';
  const forms = [`${group}(?::${group}){7}`, `::(?:${group}(?::${group}){0,6})?`];
  for (let numLeft = 1; numLeft <= 6; numLeft++)
    forms.push(`${group}(?::${group}){${numLeft - 1}}::(?:${group}(?::${group}){0,${6 - numLeft}})?`);
  forms.push(`${group}(?::${group}){6}::`);
  return `(?:${forms.join('|')})`;
}

const IPV4 = `${OCTET}(?:\\.${OCTET}){3}`;
const URI_PATH = '(?:/[A-Za-z0-9._~-]{0,64}){0,16}';
const URI_END = '(?:\\?[A-Za-z0-9._~=&-]{0,256})?(?:#[A-Za-z0-9._~-]{0,64})?';
const URI_BEGIN = `[a-z][a-z0-9+.-]{0,15}://${HOSTNAME}(?::[1-9]\\d{0,3})?`;
const URI = `${URI_BEGIN}${URI_PATH}${URI_END}`;
const WEB_URL = `https?://${LABEL}(?:\\.${LABEL})?\\.[a-z]{2,24}${URI_PATH}${URI_END}`;
const URI_REFERENCE = `(?:${URI}|(?:/[A-Za-z0-9._~-]{1,64}){1,16}/?${URI_END}|[A-Za-z0-9._~-]{1,64}${URI_PATH}${URI_END})`;
const EMAIL = `${ATOM}{1,32}(?:\\.${ATOM}{1,15}){0,2}@(?:${LABEL}\\.){1,3}[A-Za-z]{2,12}`;
const JSON_POINTER = '(?:/(?:[^~/\\x00-\\x1f]|~[01]){0,64}){0,16}';
const BASE64 = '(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?';
/** The headers of HS256, RS256 and ES256 with the type JWT. */
const JWT_HEADER = 'eyJhbGciOiJ(?:IUzI1NiIsInR5cCI6IkpXVCJ9|SUzI1NiIsInR5cCI6IkpXVCJ9|FUzI1NiIsInR5cCI6IkpXVCJ9)';
const BASE64_URL = '(?:[A-Za-z0-9_-]{4}){1,1024}(?:[A-Za-z0-9_-]{2,3})?';
/** Emoji of one code point that are displayed as such without a variation selector. */
const EMOJI = '[\\u{1F300}-\\u{1F320}\\u{1F400}-\\u{1F43E}\\u{1F600}-\\u{1F64F}\\u{1F680}-\\u{1F6C5}]{1,16}';

/**
 * Patterns of the supported `format`s: of JSON Schema, and of clients that send a format without a pattern. They match
 * only valid strings, and bound the length where the standards do not. The patterns that zod
 * sends with these formats match all of these strings.
 */
export const FORMATS: ReadonlyMap<string, string> = new Map([
  ['date', DATE],
  ['time', TIME],
  ['date-time', `${DATE}T${TIME}`],
  ['duration', `P(?:${CALENDAR}(?:T${CLOCK})?|T${CLOCK}|${COUNT}W)`],
  ['uuid', '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}'],
  ['email', EMAIL],
  ['idn-email', EMAIL],
  ['hostname', HOSTNAME],
  ['idn-hostname', HOSTNAME],
  ['ipv4', IPV4],
  ['ipv6', ipv6()],
  ['uri', URI],
  ['uri-reference', URI_REFERENCE],
  ['iri', URI],
  ['iri-reference', URI_REFERENCE],
  ['uri-template', URI_REFERENCE],
  ['url', WEB_URL],
  ['json-pointer', JSON_POINTER],
  ['relative-json-pointer', `(?:0|[1-9]\\d{0,8})(?:#|${JSON_POINTER})`],
  ['regex', '[A-Za-z0-9 _,:;=<>@%&/-]*'],
  ['byte', BASE64],
  ['jwt', `${JWT_HEADER}\\.${BASE64_URL}\\.${BASE64_URL}`],
  ['emoji', EMOJI],
]);

const PICTOGRAPHIC = '\\p{Extended_Pictographic}';

/** Patterns of zod 4 that match all texts of a format and that no automaton matches. */
const IMPLIED: ReadonlyMap<string, readonly string[]> = new Map([
  [
    'emoji',
    [
      `^(?=[\\s\\S]*[${PICTOGRAPHIC}\\p{Regional_Indicator}\\u20E3])[${PICTOGRAPHIC}\\p{Emoji_Component}]+$`,
      `^(${PICTOGRAPHIC}|\\p{Emoji_Component})+$`,
    ],
  ],
]);

/** Returns whether all texts of the format match the pattern. */
export function formatImplies(format: unknown, pattern: string): boolean {
  return IMPLIED.get(String(format))?.includes(pattern) === true;
}

/** Maximum length for {@link SHORT_FORMATS}. */
const MAX_SHORT = 1024;
/** Patterns without bounds, so that counting to a short maximum takes few states. */
const SHORT_FORMATS: ReadonlyMap<string, string> = new Map(
  ['uri', 'iri'].map((name) => [name, `${URI_BEGIN}(?:/[A-Za-z0-9._~/-]*)?(?:\\?[A-Za-z0-9._~=&-]*)?`]),
);

/** Returns the pattern of a format for texts of a maximum length, or undefined for an unknown format. */
export function formatPattern(format: string, maxLength: number | null): string | undefined {
  const short = maxLength !== null && maxLength <= MAX_SHORT ? SHORT_FORMATS.get(format) : undefined;
  return short ?? FORMATS.get(format);
}
