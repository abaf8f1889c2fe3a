import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Deployment } from '../../api/objects';
import { type ApiProblem, toProblem } from '../api/problem';
import { formatMs } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, t } from '../i18n';
import { TextField } from '../ui/field';
import { Card } from '../ui/page';
import { Banner, ProblemBanner } from '../ui/state';
import { KeyChoice } from './key-choice';
import type { RequestDraft } from './request';
import { EMPTY_RESPONSE } from './response-reader';
import { errorText, testResponses } from './run';
import { SendButton } from './send-button';

interface TextToolProps<T> {
  of: Deployment;
  model: string;
  title: string;
  /** What the tool does, in one sentence. */
  hint: string;
  path: string;
  /** The fields of the body besides the model. Undefined if a text is missing. */
  body: object | undefined;
  /** Returns undefined for a response of another form. */
  read: (response: unknown) => T | undefined;
  show: (result: T) => ComponentChildren;
  children: ComponentChildren;
}

interface Outcome<T> {
  result?: T;
  error?: string;
  ms?: number;
}

/** Sends texts to a route that answers with one JSON object. */
export function TextTool<T>({ of, model, title, hint, path, body, read, show, children }: TextToolProps<T>) {
  const [settings, setSettings] = useState<{ model: string; auth: 'none' | 'key'; key: string }>({
    model,
    auth: of.access_control ? 'key' : 'none',
    key: '',
  });
  const [outcome, setOutcome] = useState<Outcome<T> | null>(null);
  const [problem, setProblem] = useState<ApiProblem | null>(null);
  const [isRunning, setRunning] = useState(false);
  const [isTried, setTried] = useState(false);
  const running = useRef<AbortController | null>(null);
  useEffect(() => () => running.current?.abort(), []);
  const lacksKey = settings.auth === 'key' && settings.key.trim() === '';
  const set = (part: Partial<typeof settings>) => setSettings({ ...settings, ...part });
  const send = async () => {
    const controller = new AbortController();
    running.current = controller;
    setRunning(true);
    setProblem(null);
    setOutcome(null);
    try {
      const draft: RequestDraft = {
        method: 'POST',
        path,
        query: [],
        headers: [],
        bodyType: 'json',
        body: JSON.stringify({ model: settings.model, ...body }),
        auth: settings.auth,
        key: settings.key,
      };
      let response = EMPTY_RESPONSE;
      for await (response of testResponses(of, draft, controller.signal));
      const { status, body: text, error, end } = response;
      if (error !== null) setOutcome({ error: `${error.code}: ${error.message}` });
      else if (status !== 200) setOutcome({ error: `${status ?? ''} ${errorText(text)}` });
      else setOutcome({ ...resultOf(text, read), ...(end === null ? {} : { ms: end.at_ms }) });
    } catch (failure) {
      if (!controller.signal.aborted) setProblem(toProblem(failure));
    } finally {
      if (running.current === controller) setRunning(false);
    }
  };
  const submit = (event: Event) => {
    event.preventDefault();
    setTried(true);
    if (body !== undefined && !lacksKey && !isRunning) void send();
  };
  return (
    <div class="split">
      <div class="stack">
        <Card title={title} note={hint}>
          <form class="stack" noValidate onSubmit={submit}>
            {children}
            {isTried && body === undefined && <p class="hint">{t('texts.missing')}</p>}
            <div class="row">
              <SendButton isRunning={isRunning} onCancel={() => running.current?.abort()} />
            </div>
          </form>
        </Card>
        <Card title={t('test.response')}>
          <div class="stack" aria-live="polite" aria-busy={isRunning}>
            <ProblemBanner problem={problem} />
            {outcome === null && problem === null && <p class="soft">{t('texts.nothing')}</p>}
            {outcome?.error !== undefined && (
              <Banner tone="bad" title={t('test.failed')}>
                {neutralise(outcome.error)}
              </Banner>
            )}
            {outcome?.result !== undefined && show(outcome.result)}
            {outcome?.ms !== undefined && (
              <p class="hint">
                {t('test.total')}: {formatMs(outcome.ms, locale())}
              </p>
            )}
          </div>
        </Card>
      </div>
      <Card title={t('chat.settings')}>
        <div class="stack">
          <KeyChoice
            value={settings}
            onChange={set}
            isRestricted={of.access_control}
            {...(isTried && lacksKey ? { error: t('test.error.key') } : {})}
          />
          <TextField label={t('chat.model')} isMono value={settings.model} onInput={(value) => set({ model: value })} />
        </div>
      </Card>
    </div>
  );
}

function resultOf<T>(text: string, read: (response: unknown) => T | undefined): Outcome<T> {
  try {
    const result = read(JSON.parse(text));
    return result === undefined ? { error: t('texts.unreadable') } : { result };
  } catch {
    return { error: t('texts.unreadable') };
  }
}
