import type { ApiProblem } from '../api/problem';
import { t } from '../i18n';
import { Button, LinkButton } from '../ui/button';
import { Mark } from '../ui/icons';
import { Page } from '../ui/page';
import { Empty, ProblemBanner } from '../ui/state';

export function NotFound() {
  return (
    <Page title={t('notFound.title')}>
      <Empty
        icon="search"
        title={t('notFound.heading')}
        actions={<LinkButton href="/deployments">{t('notFound.back')}</LinkButton>}
      >
        {t('notFound.text')}
      </Empty>
    </Page>
  );
}

export function Unreachable({ problem, onRetry }: { problem: ApiProblem; onRetry: () => void }) {
  return (
    <main class="gate">
      <div class="gate-box">
        <div class="gate-brand">
          <Mark size={34} />
          Capstan
        </div>
        <h1 class="visually-hidden">Capstan</h1>
        <ProblemBanner problem={problem}>
          <div class="row">
            <Button isSmall icon="restart" onClick={onRetry}>
              {t('action.retry')}
            </Button>
          </div>
        </ProblemBanner>
      </div>
    </main>
  );
}
