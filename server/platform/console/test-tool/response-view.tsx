import { useState } from 'preact/hooks';
import { formatBytes, formatMs } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, t } from '../i18n';
import { CopyButton } from '../ui/copy';
import { Segments } from '../ui/field';
import { Banner } from '../ui/state';
import { chatDelta, type Piece, prettyBody, type TestResponse } from './response-reader';

type View = 'body' | 'pieces' | 'headers';

/** A response: status, timing, body, events or chunks, and headers. */
export function ResponseView({ of, isRunning }: { of: TestResponse; isRunning: boolean }) {
  const [view, setView] = useState<View | null>(null);
  const shown = view ?? (of.isEventStream ? 'pieces' : 'body');
  return (
    <>
      <div class="row">
        {of.status !== null && (
          <span class={`badge badge-${toneOf(of.status)}`}>
            {of.status} {STATUS_TEXT[of.status] ?? ''}
          </span>
        )}
        {isRunning && (
          <span class="badge badge-info" role="status">
            <span class="dot dot-moving" />
            {t('test.running')}
          </span>
        )}
        {of.end?.truncated === true && <span class="badge badge-warn">{t('test.truncated')}</span>}
      </div>
      {of.error !== null && (
        <Banner
          tone="bad"
          title={
            <>
              {t('test.failed')} <code class="small">{of.error.code}</code>
            </>
          }
        >
          {neutralise(of.error.message)}
        </Banner>
      )}
      {of.status !== null && <Timing of={of} />}
      {of.status !== null && (
        <>
          <div class="row">
            <Segments
              label={t('test.view')}
              value={shown}
              onChange={setView}
              options={[
                { value: 'body', label: t('test.body') },
                {
                  value: 'pieces',
                  label: `${t(of.isEventStream ? 'test.events' : 'test.chunks')} (${of.pieces.length})`,
                },
                { value: 'headers', label: `${t('test.headers')} (${of.headers.length})` },
              ]}
            />
            {of.body !== '' && <CopyButton text={of.body} label={t('test.copyBody')} />}
          </div>
          {shown === 'body' && (
            <pre class="response-body" tabIndex={0} role="region" aria-label={t('test.body')}>
              {of.body === '' ? t('test.emptyBody') : neutralise(prettyBody(of.body))}
            </pre>
          )}
          {shown === 'pieces' && <Pieces of={of.pieces} />}
          {shown === 'headers' && (
            <dl class="facts">
              {of.headers.map(([name, value], i) => (
                <div key={i} style={{ display: 'contents' }}>
                  <dt>
                    <code>{neutralise(name)}</code>
                  </dt>
                  <dd>
                    <code class="isolate">{neutralise(value)}</code>
                  </dd>
                </div>
              ))}
            </dl>
          )}
        </>
      )}
    </>
  );
}

function Timing({ of: { end, firstEventMs, pieces } }: { of: TestResponse }) {
  const gaps = pieces
    .slice(1)
    .map(({ gapMs }) => gapMs)
    .filter((gap) => gap > 0)
    .sort((a, b) => a - b);
  const facts: (readonly [string, string])[] = [
    ...(end === null
      ? []
      : ([
          [t('test.connect'), formatMs(end.connect_ms, locale())],
          [t('test.firstByte'), formatMs(end.first_byte_ms, locale())],
        ] as const)),
    ...(firstEventMs === null ? [] : ([[t('test.firstEvent'), formatMs(firstEventMs, locale())]] as const)),
    ...(gaps.length === 0
      ? []
      : ([
          [t('test.gap'), formatMs(gaps[Math.floor(gaps.length / 2)], locale())],
          [t('test.longestGap'), formatMs(gaps[gaps.length - 1], locale())],
        ] as const)),
    ...(end === null
      ? []
      : ([
          [t('test.total'), formatMs(end.at_ms, locale())],
          [t('data.size'), formatBytes(end.bytes, locale())],
        ] as const)),
  ];
  return (
    <dl class="timing">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

const SHOWN_PIECES = 1_000;
const SHORT = 160;

function Pieces({ of }: { of: readonly Piece[] }) {
  if (of.length === 0) return <p class="hint">{t('test.emptyBody')}</p>;
  return (
    <ol class="chunks" tabIndex={0} aria-label={t('test.events')}>
      {of.slice(0, SHOWN_PIECES).map(({ atMs, gapMs, text }, i) => (
        <li key={i}>
          <span class="numeric">{formatMs(atMs, locale())}</span>
          <span class="numeric faint">+{formatMs(gapMs, locale())}</span>
          <PieceText of={text} />
        </li>
      ))}
      {of.length > SHOWN_PIECES && (
        <li>
          <span />
          <span />
          <span class="faint">{t('test.morePieces', { n: of.length - SHOWN_PIECES })}</span>
        </li>
      )}
    </ol>
  );
}

/** Shows the text that a chat event adds, with the raw event on one line below. */
function PieceText({ of }: { of: string }) {
  const { text, reasoning } = chatDelta(of);
  if (text + reasoning === '')
    return of.length > SHORT ? (
      <div class="piece">
        <code class="raw" title={neutralise(of)}>
          {neutralise(of)}
        </code>
      </div>
    ) : (
      <code class="isolate">{neutralise(of)}</code>
    );
  return (
    <div class="piece">
      <code class="isolate">{JSON.stringify(neutralise(text + reasoning))}</code>
      <code class="raw" title={neutralise(of)}>
        {neutralise(of)}
      </code>
    </div>
  );
}

function toneOf(status: number): 'ok' | 'warn' | 'bad' {
  if (status < 300) return 'ok';
  return status < 500 ? 'warn' : 'bad';
}

const STATUS_TEXT: Readonly<Record<number, string>> = {
  200: 'OK',
  201: 'Created',
  202: 'Accepted',
  204: 'No Content',
  301: 'Moved Permanently',
  302: 'Found',
  304: 'Not Modified',
  400: 'Bad Request',
  401: 'Unauthorized',
  403: 'Forbidden',
  404: 'Not Found',
  405: 'Method Not Allowed',
  409: 'Conflict',
  413: 'Content Too Large',
  415: 'Unsupported Media Type',
  422: 'Unprocessable Content',
  429: 'Too Many Requests',
  500: 'Internal Server Error',
  501: 'Not Implemented',
  502: 'Bad Gateway',
  503: 'Service Unavailable',
  504: 'Gateway Timeout',
};
