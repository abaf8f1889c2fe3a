const HOUR = '(?:[01]\\d|2[0-3])';
const SIXTY = '[0-5]\\d';
const DATE =
  '(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))' +
  '|(?:\\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)';
const TIME = `${HOUR}:${SIXTY}:${SIXTY}(?:\\.\\d{1,9})?(?:Z|[+-]${HOUR}:${SIXTY})`;
const OCTET = '(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)';
const LABEL = '[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?';
const HOSTNAME = `${LABEL}(?:\\.${LABEL}){0,2}`;
const ATOM = '[A-Za-z0-9_%+-]{1,32}';
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

/**
 * Patterns of the supported `format`s. They match only valid strings, and bound the length where the standards do not.
 */
export const FORMATS: ReadonlyMap<string, string> = new Map([
  ['date', DATE],
  ['time', TIME],
  ['date-time', `${DATE}T${TIME}`],
  ['duration', `P(?:${CALENDAR}(?:T${CLOCK})?|T${CLOCK}|${COUNT}W)`],
  ['uuid', '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}'],
  ['email', `${ATOM}(?:\\.${ATOM}){0,3}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?\\.){1,4}[A-Za-z]{2,24}`],
  ['hostname', HOSTNAME],
  ['ipv4', `${OCTET}(?:\\.${OCTET}){3}`],
  ['ipv6', ipv6()],
  [
    'uri',
    `[a-z][a-z0-9+.-]{0,15}://${HOSTNAME}(?::[1-9]\\d{0,3})?(?:/[A-Za-z0-9._~-]{0,64}){0,16}(?:\\?[A-Za-z0-9._~=&-]{0,256})?(?:#[A-Za-z0-9._~-]{0,64})?`,
  ],
]);
