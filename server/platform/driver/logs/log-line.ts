import { isOfLevel, levelOf, type LogLineLevel } from './log-level';

export type LogStreamName = 'stdout' | 'stderr' | 'system';

/** One line of a version's or a container's log. */
export interface LogLine {
  /** Starts at 1. No gaps, except for expired lines. */
  readonly seq: number;
  /** UTC milliseconds. */
  readonly at: number;
  readonly stream: LogStreamName;
  /** Ordinal of the replica. */
  readonly replica: number;
  readonly text: string;
}

export type NewLogLine = Omit<LogLine, 'seq'>;

/** How far the spool of a replica has been copied to the log: file and offset. */
export interface SpoolPosition {
  file: number;
  offset: number;
}

const LETTERS: Readonly<Record<LogStreamName, string>> = { stdout: 'o', stderr: 'e', system: 's' };
const STREAMS: Readonly<Record<string, LogStreamName>> = { o: 'stdout', e: 'stderr', s: 'system' };
const LINE = /^(\d+) (\d+) ([oes])(\d+) (.*)$/s;

/** Encodes a line for a segment: `1042 1795277764174 o0 text`. */
export function encodeLine({ seq, at, stream, replica, text }: LogLine): string {
  return `${seq} ${at} ${LETTERS[stream]}${replica} ${oneLine(text)}\n`;
}

/** Returns undefined for a mark or malformed text. */
export function decodeLine(text: string): LogLine | undefined {
  const match = LINE.exec(text);
  return match === null
    ? undefined
    : {
        seq: Number(match[1]),
        at: Number(match[2]),
        stream: streamOf(match[3]),
        replica: Number(match[4]),
        text: match[5],
      };
}

export function streamOf(letter: string): LogStreamName {
  return STREAMS[letter] ?? 'system';
}

function oneLine(text: string): string {
  return text.replaceAll('\n', '\u2028');
}

/** Closes each write to a segment. Lines after the last mark were not written completely. */
export interface Mark {
  /** The replica whose lines were written, with its new spool position. */
  replicaId?: string;
  position?: SpoolPosition;
}

export function encodeMark({ replicaId = '-', position }: Mark): string {
  return `# ${replicaId}${position === undefined ? '' : ` ${position.file} ${position.offset}`}\n`;
}

export function decodeMark(text: string): Mark | undefined {
  const match = /^# (\S+)(?: (\d+) (\d+))?$/.exec(text);
  if (match === null) return undefined;
  const [, replicaId, file, offset] = match;
  return file === undefined ? {} : { replicaId, position: { file: Number(file), offset: Number(offset) } };
}

export interface LogFilter {
  stream?: LogStreamName;
  replica?: number;
  /** UTC milliseconds, inclusive. */
  since?: number;
  until?: number;
  /** Lines of this level or more severe. `unknown`: lines without a level. */
  level?: LogLineLevel;
  /** Plain text, case-insensitive. */
  text?: string;
}

export function matcher({ stream, replica, since, until, level, text }: LogFilter): (line: LogLine) => boolean {
  const wanted = text?.toLowerCase();
  return (line) =>
    (stream === undefined || line.stream === stream) &&
    (replica === undefined || line.replica === replica) &&
    (since === undefined || line.at >= since) &&
    (until === undefined || line.at <= until) &&
    (level === undefined || isOfLevel(levelOf(line), level)) &&
    (wanted === undefined || line.text.toLowerCase().includes(wanted));
}
