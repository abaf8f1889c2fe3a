import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import type { ApiProblem } from '../api/problem';
import { describeProblem } from '../api/describe';
import { neutralise } from '../format/neutral';
import { serviceText, t } from '../i18n';
import { Button } from './button';
import { Icon, type IconName } from './icons';

type Tone = 'info' | 'ok' | 'warn' | 'bad';
const TONE_ICONS: Readonly<Record<Tone, IconName>> = { info: 'info', ok: 'check', warn: 'warning', bad: 'error' };

export function Banner({
  tone = 'info',
  title,
  children,
  role,
}: {
  tone?: Tone;
  title?: ComponentChildren;
  children?: ComponentChildren;
  role?: 'alert' | 'status';
}) {
  return (
    <div class={`banner banner-${tone}`} role={role}>
      <Icon name={TONE_ICONS[tone]} />
      <div class="banner-text">
        {title !== undefined && <strong>{title}</strong>}
        {children}
      </div>
    </div>
  );
}

/** Describes a problem: the translated title and the detail from the service. */
export function ProblemBanner({ problem, children }: { problem: ApiProblem | null; children?: ComponentChildren }) {
  if (problem === null) return null;
  const { title, detail } = describeProblem(problem);
  return (
    <Banner tone="bad" role="alert" title={title}>
      {detail !== '' && <span class="isolate">{neutralise(detail)}</span>}
      {problem.fields.length > 0 && (
        <ul>
          {problem.fields.map((field) => (
            <li key={field.pointer}>
              <code>{field.pointer}</code> {neutralise(serviceText(field.message))}
            </li>
          ))}
        </ul>
      )}
      {problem.requestId !== null && problem.status >= 500 && (
        <div class="tiny faint">{t('problem.requestId', { id: problem.requestId })}</div>
      )}
      {children}
    </Banner>
  );
}

export function Empty({
  icon,
  title,
  children,
  actions,
  level = 2,
}: {
  icon: IconName;
  title: string;
  children?: ComponentChildren;
  actions?: ComponentChildren;
  level?: 2 | 3;
}) {
  const Heading = level === 2 ? 'h2' : 'h3';
  return (
    <div class="empty">
      <Icon name={icon} size={30} />
      <Heading>{title}</Heading>
      {children !== undefined && <p>{children}</p>}
      {actions !== undefined && <div class="row">{actions}</div>}
    </div>
  );
}

/** A placeholder during the first load. It appears after a delay, so that fast loads do not flicker. */
export function Skeleton({ lines = 3 }: { lines?: number }) {
  const [isShown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(true), 150);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div class="stack-small" role="status">
      <span class="visually-hidden">{t('state.loading')}</span>
      {isShown &&
        Array.from({ length: lines }, (_, i) => (
          <div key={i} class="skeleton" style={{ height: '18px', width: `${[92, 78, 85, 60][i % 4]}%` }} />
        ))}
    </div>
  );
}

/** Shows a resource that is loading, failed, loaded, or stale because the last reload failed. */
export function Loaded<T>({
  of,
  children,
  lines,
}: {
  of: { data: T | undefined; problem: ApiProblem | null; reload: () => void };
  children: (data: T) => ComponentChildren;
  lines?: number;
}) {
  const retry = (
    <div class="row">
      <Button isSmall icon="restart" onClick={of.reload}>
        {t('action.retry')}
      </Button>
    </div>
  );
  if (of.data === undefined)
    return of.problem === null ? (
      <Skeleton lines={lines} />
    ) : (
      <ProblemBanner problem={of.problem}>{retry}</ProblemBanner>
    );
  return (
    <>
      {of.problem !== null && <ProblemBanner problem={of.problem}>{retry}</ProblemBanner>}
      {children(of.data)}
    </>
  );
}
