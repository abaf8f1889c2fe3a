import { isOfLevel, levelOf, type LogLineLevel } from './log-level';

export const LOG_STREAMS = ['stdout', 'stderr', 'system'] as const;
export type LogStreamName = (typeof LOG_STREAMS)[number];

/** One line of a version's or a container's log. */
export interface LogLine {
  /** From 1 on, without gaps but for lines that expired. */
  readonly seq: number;
  /** UTC milliseconds. */
  readonly at: number;
  readonly stream: LogStreamName;
  /** Its ordinal. */
  readonly replica: number;
  readonly text: string;
}

export type NewLogLine = Omit<LogLine, 'seq'>;

/** How far the log of a replica has been taken up from where its supervisor leaves it: file and offset. */
export interface SpoolPosition {
  file: number;
  offset: number;
}

const LETTERS: Readonly<Record<LogStreamName, string>> = { stdout: 'o', stderr: 'e', system: 's' };
const LINE = /^(\d+) (\d+) ([oes])(\d+) (.*)$/s;

/** `1042 1795277764174 o0 text`, as segments hold it. */
export function encodeLine({ seq, at, stream, replica, text }: LogLine): string {
  return `${seq} ${at} ${LETTERS[stream]}${replica} ${oneLine(text)}\n`;
}

/** undefined for a mark, or what is no line. */
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
  return letter === 'o' ? 'stdout' : letter === 'e' ? 'stderr' : 'system';
}

function oneLine(text: string): string {
  return text.replaceAll('\n', '\u2028');
}

/** What closes each write to a segment: what comes after the last one was not written whole. */
export interface Mark {
  /** Whose lines have been taken up so far. */
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
  /** UTC milliseconds, included. */
  since?: number;
  until?: number;
  /** Of this level or a graver one; `unknown`: that tell none. */
  level?: LogLineLevel;
  /** Plain text, in whatever case. */
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
