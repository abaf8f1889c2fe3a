import { useEffect, useRef, useState } from 'preact/hooks';
import type { Deployment } from '../../api/objects';
import type { ModelTask } from '../format/snippets';
import { type ApiProblem, toProblem } from '../api/problem';
import { t } from '../i18n';
import { Button } from '../ui/button';
import { CodeField } from '../ui/code-field';
import { Segments, Select, TextArea, TextField } from '../ui/field';
import { Card } from '../ui/page';
import { ProblemBanner } from '../ui/state';
import { ResponseView } from './response-view';
import { KeyChoice } from './key-choice';
import { EMPTY_RESPONSE, type TestResponse } from './response-reader';
import { PairRows } from './pair-rows';
import { METHODS, type Method, type RequestDraft, requestExample, requestProblems } from './request';
import { testResponses } from './run';
import { SendButton } from './send-button';

/** Sends any request to the deployment through the gateway, so that access control applies. */
export function TestTool({ of, model, task }: { of: Deployment; model: string; task: ModelTask }) {
  const example = requestExample(task, model);
  const [draft, setDraft] = useState<RequestDraft>(() => ({
    method: 'POST',
    path: example.path,
    query: [],
    headers: [],
    body: example.body,
    bodyType: 'json',
    auth: of.access_control ? 'key' : 'none',
    key: '',
  }));
  const [response, setResponse] = useState<TestResponse | null>(null);
  const [problem, setProblem] = useState<ApiProblem | null>(null);
  const [isSubmitted, setSubmitted] = useState(false);
  const running = useRef<AbortController | null>(null);
  const [isRunning, setRunning] = useState(false);
  useEffect(() => () => running.current?.abort(), []);
  const set = (part: Partial<RequestDraft>) => setDraft({ ...draft, ...part });
  const problems = requestProblems(draft);
  const errorOf = (field: keyof typeof problems) =>
    isSubmitted && problems[field] !== undefined ? t(problems[field]) : undefined;
  const send = async () => {
    const controller = new AbortController();
    running.current = controller;
    setRunning(true);
    setProblem(null);
    setResponse(EMPTY_RESPONSE);
    try {
      for await (const received of testResponses(of, draft, controller.signal)) setResponse(received);
    } catch (error) {
      if (!controller.signal.aborted) {
        setProblem(toProblem(error));
        setResponse(null);
      }
    } finally {
      if (running.current === controller) setRunning(false);
    }
  };
  const submit = (event: Event) => {
    event.preventDefault();
    setSubmitted(true);
    if (Object.keys(problems).length === 0 && !isRunning) void send();
  };
  const bodyField = {
    label: t('test.body'),
    rows: 12,
    value: draft.body,
    onInput: (body: string) => set({ body }),
    error: errorOf('body'),
  };
  const hasBody = draft.method !== 'GET' && draft.method !== 'HEAD';
  return (
    <div class="test">
      <Card title={t('test.request')}>
        <form class="stack" noValidate onSubmit={submit}>
          <div class="request-line">
            <div class="field">
              <span class="label">{t('test.method')}</span>
              <Select
                label={t('test.method')}
                value={draft.method}
                onChange={(method) => set({ method: method as Method })}
                options={METHODS.map((method) => ({ value: method, label: method }))}
              />
            </div>
            <TextField
              label={t('test.path')}
              isMono
              value={draft.path}
              onInput={(path) => set({ path })}
              error={errorOf('path')}
            />
            <SendButton isRunning={isRunning} onCancel={() => running.current?.abort()} />
          </div>
          <div class="row">
            <Button isSmall look="quiet" onClick={() => set({ method: 'POST', bodyType: 'json', ...example })}>
              {t(`test.example.${task}`)}
            </Button>
            <Button isSmall look="quiet" onClick={() => set({ method: 'GET', path: '/v1/models' })}>
              {t('test.exampleModels')}
            </Button>
          </div>
          <KeyChoice value={draft} onChange={set} error={errorOf('key')} isRestricted={of.access_control} />
          <details class="disclosure" open={draft.query.length > 0}>
            <summary>
              {t('test.query')} {draft.query.length > 0 && `(${draft.query.length})`}
            </summary>
            <PairRows name={t('test.query')} value={draft.query} onChange={(query) => set({ query })} />
          </details>
          <details class="disclosure" open={draft.headers.length > 0}>
            <summary>
              {t('test.headers')} {draft.headers.length > 0 && `(${draft.headers.length})`}
            </summary>
            <PairRows
              name={t('test.headers')}
              value={draft.headers}
              onChange={(headers) => set({ headers })}
              error={errorOf('headers')}
            />
          </details>
          {hasBody && (
            <div class="stack-small">
              <div>
                <Segments
                  label={t('test.bodyType')}
                  value={draft.bodyType}
                  onChange={(bodyType) => set({ bodyType })}
                  options={(['json', 'text', 'none'] as const).map((value) => ({
                    value,
                    label: t(`test.body.${value}`),
                  }))}
                />
              </div>
              {draft.bodyType === 'json' && <CodeField {...bodyField} language="json" />}
              {draft.bodyType === 'text' && <TextArea {...bodyField} isMono />}
            </div>
          )}
        </form>
      </Card>
      <Card title={t('test.response')}>
        <div class="stack" aria-live="polite" aria-busy={isRunning}>
          <ProblemBanner problem={problem} />
          {response === null && problem === null && <p class="soft">{t('test.nothing')}</p>}
          {response !== null && <ResponseView of={response} isRunning={isRunning} />}
        </div>
      </Card>
    </div>
  );
}
