import { useState } from 'preact/hooks';
import type { Deployment, Version } from '../../../api/objects';
import type { PageList } from '../../api/resource';
import { modelName, type ModelTask } from '../../format/snippets';
import { t } from '../../i18n';
import { Chat } from '../../test-tool/chat';
import { Embeddings } from '../../test-tool/embeddings';
import { Ranking } from '../../test-tool/ranking';
import { TestTool } from '../../test-tool/tool';
import { Segments } from '../../ui/field';
import { Banner, Skeleton } from '../../ui/state';

type View = 'chat' | 'embeddings' | 'ranking' | 'tool';

/** The tools for the model's task, the most useful one first. */
const VIEWS: Readonly<Record<ModelTask | 'auto', readonly View[]>> = {
  auto: ['chat', 'embeddings', 'ranking', 'tool'],
  generate: ['chat', 'tool'],
  embed: ['embeddings', 'ranking', 'tool'],
  score: ['ranking', 'tool'],
};
const TITLES = {
  chat: 'chat.title',
  embeddings: 'embeddings.title',
  ranking: 'ranking.title',
  tool: 'test.title',
} as const;

export function TestTab({ of, versions }: { of: Deployment; versions: PageList<Version> }) {
  const [chosen, setView] = useState<View | null>(null);
  if (versions.data === undefined && versions.problem === null) return <Skeleton />;
  const runtime = versions.data?.find(({ number }) => number === of.active_version)?.spec.runtime;
  const model = of.upstream === null ? modelName(runtime, of.name) : of.name;
  const task = runtime?.task ?? null;
  const views = VIEWS[task ?? 'auto'];
  const view = chosen !== null && views.includes(chosen) ? chosen : views[0];
  const serves =
    of.state === 'running' ||
    of.state === 'degraded' ||
    of.state === 'updating' ||
    of.state === 'update_failed' ||
    of.state === 'scaled_to_zero';
  return (
    <div class="stack">
      <div class="row">
        <Segments
          label={t('deployment.test')}
          value={view}
          onChange={setView}
          options={views.map((value) => ({ value, label: t(TITLES[value]) }))}
        />
        <span class="hint">{t('test.through')}</span>
      </div>
      {!serves && (
        <Banner tone="warn" title={t('test.notServing')}>
          {t('test.notServingHint')}
        </Banner>
      )}
      {view === 'chat' && <Chat of={of} model={model} />}
      {view === 'embeddings' && <Embeddings of={of} model={model} />}
      {view === 'ranking' && <Ranking of={of} model={model} />}
      {view === 'tool' && <TestTool of={of} model={model} task={task ?? 'generate'} />}
    </div>
  );
}
